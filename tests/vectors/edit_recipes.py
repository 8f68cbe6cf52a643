"""How code is edited while runs of it are open: for each edit the old code, the new, and what one writes first.

*naive* is the new code as it would be written without knowing of runs that are open. What stands in a history in the
end is given for four runs: one that is *fresh*, one stopped *before* the edited point, one stopped *after* it (their
numbers of calls of the old code are *stops*), and one that had *finished*, which nothing can change any more.
"""

from dataclasses import dataclass

from vectors.program_notation import Program, branch, gather, loop, program, strand


@dataclass(frozen=True)
class Recipe:
    """One edit."""

    title: str
    old: Program
    new: Program
    naive: Program
    stops: tuple[int, int]
    fresh: str
    before: str
    after: str
    finished: str
    twice: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return self.title


def recipe(title: str, old: object, new: object, naive: object, **rest: object) -> Recipe:
    """Return a recipe; programs are words, or tuples of words and calls."""
    old, new, naive = (program(*(one if isinstance(one, tuple) else (one,))) for one in (old, new, naive))
    return Recipe(title, old, new, naive, **rest)  # type: ignore[arg-type]


ABC = "1=a 2=b 3=c"
LOOPED = "1=a 2=~loop 2/1/1=p 2/1/2=q 2/2/1=p 2/2/2=q"

RECIPES: tuple[Recipe, ...] = (
    recipe(
        *("add in the middle", "a b c", "a x@2 b c", "a x b c"),
        stops=(1, 2),
        fresh="1=a 2=x@2 3=b 4=c",
        before="1=a 2=x@2 3=b 4=c",
        after="1=a 1.1=x@2 2=b 3=c",
        finished=ABC,
    ),
    recipe(
        *("add several in the middle", "a b c", "a x@2 y@2 b z@2 c", "a x y b z c"),
        stops=(1, 3),
        fresh="1=a 2=x@2 3=y@2 4=b 5=z@2 6=c",
        before="1=a 2=x@2 3=y@2 4=b 5=z@2 6=c",
        after="1=a 1.1=x@2 1.2=y@2 2=b 2.1=z@2 3=c",
        finished=ABC,
    ),
    recipe(
        *("add at the start", "a b", "x@2 a b", "x a b"),
        stops=(0, 1),
        fresh="1=x@2 2=a 3=b",
        before="1=x@2 2=a 3=b",
        after="0.1=x@2 1=a 2=b",
        finished="1=a 2=b",
    ),
    recipe(
        *("add at the end", "a b", "a b x", "a b x"),
        stops=(1, 2),
        fresh="1=a 2=b 3=x",
        before="1=a 2=b 3=x",
        after="1=a 2=b 3=x",
        finished="1=a 2=b",
    ),
    recipe(
        *("add a branch", "a b", ("a", branch("k n", v=2), "b"), ("a", branch("k n"), "b")),
        stops=(1, 2),
        fresh="1=a 2=~branch@2 2/1=k@2 2/2=n@2 3=b",
        before="1=a 2=~branch@2 2/1=k@2 2/2=n@2 3=b",
        after="1=a 1.1=~branch@2 1.1/1=k@2 1.1/2=n@2 2=b",
        finished="1=a 2=b",
    ),
    recipe(
        *("add strands", "a b", ("a", gather(strand("k", v=2), strand("n", v=2)), "b")),
        ("a", gather(strand("k"), strand("n")), "b"),
        stops=(1, 2),
        fresh="1=a 2=~branch@2 2/1=k@2 3=~branch@2 3/1=n@2 4=b",
        before="1=a 2=~branch@2 2/1=k@2 3=~branch@2 3/1=n@2 4=b",
        after="1=a 1.1=~branch@2 1.1/1=k@2 1.2=~branch@2 1.2/1=n@2 2=b",
        finished="1=a 2=b",
    ),
    recipe(
        *("add a loop", "a b", ("a", loop(2, "k", v=2), "b"), ("a", loop(2, "k"), "b")),
        stops=(1, 2),
        fresh="1=a 2=~loop@2 2/1/1=k@2 2/2/1=k@2 3=b",
        before="1=a 2=~loop@2 2/1/1=k@2 2/2/1=k@2 3=b",
        after="1=a 1.1=~loop@2 1.1/1/1=k@2 1.1/2/1=k@2 2=b",
        finished="1=a 2=b",
    ),
    recipe(
        *("add a sleep and a wait", "a b", "a ~sleep@2 ~wait@2 b", "a ~sleep ~wait b"),
        stops=(1, 2),
        fresh="1=a 2=~sleep@2 3=~listen@2 4=b",
        before="1=a 2=~sleep@2 3=~listen@2 4=b",
        after="1=a 1.1=~sleep@2 1.2=~listen@2 2=b",
        finished="1=a 2=b",
    ),
    recipe(
        *("add state and an operation", "a b", "a ~set@2 ~run@2 b", "a ~set ~run b"),
        stops=(1, 2),
        fresh="1=a 2=~set@2 3=~run@2 4=b",
        before="1=a 2=~set@2 3=~run@2 4=b",
        after="1=a 1.1=~set@2 1.2=~run@2 2=b",
        finished="1=a 2=b",
    ),
    recipe(
        *("delete", "a b c", "a -b c", "a c"),
        stops=(1, 2),
        fresh="1=a 2=~gone:b 3=c",
        before="1=a 2=~gone:b 3=c",
        after=ABC,
        finished=ABC,
    ),
    recipe(
        *("delete two in a row", "a b c d", "a -b -c d", "a d"),
        stops=(1, 3),
        fresh="1=a 2=~gone:b 3=~gone:c 4=d",
        before="1=a 2=~gone:b 3=~gone:c 4=d",
        after="1=a 2=b 3=c 4=d",
        finished="1=a 2=b 3=c 4=d",
    ),
    recipe(
        *("delete at the end", "a b", "a -b", "a"),
        stops=(1, 2),
        fresh="1=a 2=~gone:b",
        before="1=a 2=~gone:b",
        after="1=a 2=b",
        finished="1=a 2=b",
    ),
    recipe(
        *("delete a sleep", "a ~sleep b", "a -~sleep b", "a b"),
        stops=(1, 2),
        fresh="1=a 2=~gone:~sleep 3=b",
        before="1=a 2=~gone:~sleep 3=b",
        after="1=a 2=~sleep 3=b",
        finished="1=a 2=~sleep 3=b",
    ),
    recipe(
        *("delete a wait", "a ~wait b", "a -~wait b", "a b"),
        stops=(1, 2),
        fresh="1=a 2=~gone:~listen 3=b",
        before="1=a 2=~gone:~listen 3=b",
        after="1=a 2=~listen 3=b",
        finished="1=a 2=~listen 3=b",
    ),
    recipe(
        *("delete state and an operation", "a ~set ~run b", "a -~set -~run b", "a b"),
        stops=(1, 3),
        fresh="1=a 2=~gone:~set 3=~gone:~run 4=b",
        before="1=a 2=~gone:~set 3=~gone:~run 4=b",
        after="1=a 2=~set 3=~run 4=b",
        finished="1=a 2=~set 3=~run 4=b",
    ),
    recipe(
        *("delete a branch", ("a", branch("k n"), "b"), "a -~branch b", "a b"),
        stops=(1, 2),
        fresh="1=a 2=~gone:~branch 3=b",
        before="1=a 2=~gone:~branch 3=b",
        after="1=a 2=~branch 2/1=k 2/2=n 3=b",
        finished="1=a 2=~branch 2/1=k 2/2=n 3=b",
    ),
    recipe(
        *("delete a loop", ("a", loop(2, "p q"), "b"), "a -~loop b", "a b"),
        stops=(1, 2),
        fresh="1=a 2=~gone:~loop 3=b",
        before="1=a 2=~gone:~loop 3=b",
        after=f"{LOOPED} 3=b",
        finished=f"{LOOPED} 3=b",
    ),
    recipe(
        *("rename", "a b c", "a -b n@2 c", "a n c"),
        stops=(1, 2),
        fresh="1=a 2=~gone:b 3=n@2 4=c",
        before="1=a 2=~gone:b 3=n@2 4=c",
        after="1=a 2=b 3=n@2 4=c",
        finished=ABC,
    ),
    recipe(
        *("replace a sleep by a wait", "a ~sleep b", "a -~sleep ~wait@2 b", "a ~wait b"),
        stops=(1, 2),
        fresh="1=a 2=~gone:~sleep 3=~listen@2 4=b",
        before="1=a 2=~gone:~sleep 3=~listen@2 4=b",
        after="1=a 2=~sleep 3=~listen@2 4=b",
        finished="1=a 2=~sleep 3=b",
    ),
    recipe(
        *("move", "a b c d", "a -b c b@2 d", "a c b d"),
        stops=(1, 4),
        fresh="1=a 2=~gone:b 3=c 4=b@2 5=d",
        before="1=a 2=~gone:b 3=c 4=b@2 5=d",
        after="1=a 2=b 3=c 3.1=b@2 4=d",
        finished="1=a 2=b 3=c 4=d",
        twice=frozenset("b"),
    ),
    recipe(
        "add to the body of a loop",
        ("a", loop(2, "p q"), "b"),
        ("a", loop(2, "p x@2 q"), "b"),
        ("a", loop(2, "p x q"), "b"),
        stops=(1, 2),
        fresh="1=a 2=~loop 2/1/1=p 2/1/2=x@2 2/1/3=q 2/2/1=p 2/2/2=x@2 2/2/3=q 3=b",
        before="1=a 2=~loop 2/1/1=p 2/1/2=x@2 2/1/3=q 2/2/1=p 2/2/2=x@2 2/2/3=q 3=b",
        after="1=a 2=~loop 2/1/1=p 2/1/1.1=x@2 2/1/2=q 2/2/1=p 2/2/1.1=x@2 2/2/2=q 3=b",
        finished=f"{LOOPED} 3=b",
    ),
    recipe(
        "delete from the body of a loop",
        ("a", loop(2, "p q"), "b"),
        ("a", loop(2, "-p q"), "b"),
        ("a", loop(2, "q"), "b"),
        stops=(1, 2),
        fresh="1=a 2=~loop 2/1/1=~gone:p 2/1/2=q 2/2/1=~gone:p 2/2/2=q 3=b",
        before="1=a 2=~loop 2/1/1=~gone:p 2/1/2=q 2/2/1=~gone:p 2/2/2=q 3=b",
        after=f"{LOOPED} 3=b",
        finished=f"{LOOPED} 3=b",
    ),
    recipe(
        "delete from the end of the body of a loop",
        ("a", loop(2, "p q"), "b"),
        ("a", loop(2, "p -q"), "b"),
        ("a", loop(2, "p"), "b"),
        stops=(1, 2),
        fresh="1=a 2=~loop 2/1/1=p 2/1/2=~gone:q 2/2/1=p 2/2/2=~gone:q 3=b",
        before="1=a 2=~loop 2/1/1=p 2/1/2=~gone:q 2/2/1=p 2/2/2=~gone:q 3=b",
        after=f"{LOOPED} 3=b",
        finished=f"{LOOPED} 3=b",
    ),
    recipe(
        "delete from strands",
        (gather(strand("k1 k2"), strand("n e1")), "b"),
        (gather(strand("k1 -k2"), strand("-n e1")), "b"),
        (gather(strand("k1"), strand("e1")), "b"),
        stops=(0, 1),
        fresh="1=~branch 1/1=k1 1/2=~gone:k2 2=~branch 2/1=~gone:n 2/2=e1 3=b",
        before="1=~branch 1/1=k1 1/2=~gone:k2 2=~branch 2/1=~gone:n 2/2=e1 3=b",
        after="1=~branch 1/1=k1 1/2=k2 2=~branch 2/1=n 2/2=e1 3=b",
        finished="1=~branch 1/1=k1 1/2=k2 2=~branch 2/1=n 2/2=e1 3=b",
    ),
    recipe(
        "add to the body of a loop that is under way",
        ("a", loop(2, "p q", stop_in=1)),
        ("a", loop(2, "p x@2 q"), "b"),
        ("a", loop(2, "p x q"), "b"),
        stops=(1, 2),
        fresh="1=a 2=~loop 2/1/1=p 2/1/2=x@2 2/1/3=q 2/2/1=p 2/2/2=x@2 2/2/3=q 3=b",
        before="1=a 2=~loop 2/1/1=p 2/1/2=x@2 2/1/3=q 2/2/1=p 2/2/2=x@2 2/2/3=q 3=b",
        after="1=a 2=~loop 2/1/1=p 2/1/1.1=x@2 2/1/2=q 2/2/1=p 2/2/2=x@2 2/2/3=q 3=b",
        finished="",
    ),
    recipe(
        "add to a branch",
        ("a", branch("k n"), "b"),
        ("a", branch("k x@2 n"), "b"),
        ("a", branch("k x n"), "b"),
        stops=(1, 2),
        fresh="1=a 2=~branch 2/1=k 2/2=x@2 2/3=n 3=b",
        before="1=a 2=~branch 2/1=k 2/2=x@2 2/3=n 3=b",
        after="1=a 2=~branch 2/1=k 2/1.1=x@2 2/2=n 3=b",
        finished="1=a 2=~branch 2/1=k 2/2=n 3=b",
    ),
)
