"""The table of edits: for each, what was recorded, what the code is now, and what comes of it.

*past* are the deployments that wrote the history, oldest first, each a program (see `calls`); where no program can have
written it there are none, and the *history* (see `places`) is imported. *code* is the program that is tried. It *writes*
these commands, none other, or *parts* from the history at a place, in a field, having written nothing. *notes* are what
its version checks answered and its waits gave.
"""

from dataclasses import dataclass

from vectors.program_notation import Call, Program, branch, check, gather, loop, program, strand, task_group


@dataclass(frozen=True)
class Row:
    """One edit."""

    number: int
    title: str
    past: tuple[Program, ...]
    history: str
    code: Program
    writes: str = ""
    parts: tuple[str, str] | None = None
    notes: tuple[object, ...] = ()
    ignores: tuple[str, ...] = ()
    signal: bool = False
    advance: float = 0

    def __str__(self) -> str:
        return f"{self.number} {self.title}"


def row(number: int, title: str, past: object, history: str, *code: "str | Call", **rest: object) -> Row:
    """Return a row; the past is a program, or several in a list."""
    given = past if isinstance(past, list) else [past]
    programs = tuple(program(*(one if isinstance(one, tuple) else (one,))) for one in given if one is not None)
    return Row(number, title, programs, history, program(*code), **rest)  # type: ignore[arg-type]


ABCD = "1=a 2=b 3=c 4=d"
TEN = " ".join("c" for _ in range(10))
TEN_PLACES = " ".join(f"2/{number}=c" for number in range(1, 11))
FIVE = "2/11/1=e1 2/11/2=e2 2/11/3=e3 2/11/4=e4 2/11/5=e5"
PQ20 = " ".join(f"2/{number}/1=p 2/{number}/2=q" for number in range(1, 21))
INTO_ALL = " ".join(f"2/{number}/1.1=x@2" for number in range(1, 22))
"""Of a loop that forgets nothing every iteration is gone through again; `test_forgetting` has the one that forgets."""

ROWS: tuple[Row, ...] = (
    # Appending and inserting.
    row(1, "a run from the start", None, "", "a b c", writes="1=a 2=b 3=c"),
    row(2, "a step at the end", "a b", "1=a 2=b", "a b c", writes="3=c"),
    row(3, "a step in the middle", "a b c d", ABCD, "a x@2 b c d", writes="1.1=x@2"),
    row(4, "three in the middle", "a b c d", ABCD, "a x@2 y@2 z@2 b c d", writes="1.1=x@2 1.2=y@2 1.3=z@2"),
    row(5, "one without a version", "a b c d", ABCD, "a x b c d", parts=("2", "name")),
    row(
        6,
        "one among those that were put in",
        ["a b", "a x@2 y@2 b"],
        "1=a 1.1=x@2 1.2=y@2 2=b",
        "a x@2 z@3 y@2 b",
        writes="1.1.1=z@3",
    ),
    row(8, "before one that was put in", ["a b", "a x@2 b"], "1=a 1.1=x@2 2=b", "a q@3 x@2 b", writes="1.0.1=q@3"),
    row(
        10,
        "twice before one that was put in",
        ["a b", "a x@2 b", "a q@3 x@2 b"],
        "1=a 1.0.1=q@3 1.1=x@2 2=b",
        "a p@4 q@3 x@2 b",
        writes="1.0.0.1=p@4",
    ),
    row(12, "before the first", "a b", "1=a 2=b", "x@2 a b", writes="0.1=x@2"),
    row(13, "two before the first", "a b", "1=a 2=b", "x@2 y@2 a b", writes="0.1=x@2 0.2=y@2"),
    row(14, "before what is before the first", ["a", "x@2 a"], "0.1=x@2 1=a", "y@3 x@2 a", writes="0.0.1=y@3"),
    row(
        15,
        "and before that",
        ["a", "x@2 a", "y@3 x@2 a"],
        "0.0.1=y@3 0.1=x@2 1=a",
        "z@4 y@3 x@2 a",
        writes="0.0.0.1=z@4",
    ),
    row(16, "behind what is before the first", ["a", "x@2 a"], "0.1=x@2 1=a", "x@2 y@2 a", writes="0.2=y@2"),
    row(
        17, "around a step born with a version", "a b@2 c", "1=a 2=b@2 3=c", "a x@3 b@2 y@2 c", writes="1.1=x@3 2.1=y@2"
    ),
    row(19, "not above what follows", "a b@2 c", "1=a 2=b@2 3=c", "a x@2 b@2 c", parts=("2", "name")),
    row(20, "a version taken back", "a b@2", "1=a 2=b@2", "a b", parts=("2", "version")),
    row(21, "a version where nothing follows", "a", "1=a", "a x@2 b", writes="2=x@2 3=b"),
    # Histories with gaps.
    row(22, "holes", [], "1=a 3=b 6=c", "a b c d", writes="7=d"),
    row(24, "no whole number at the start", [], "2.1=p 4=q", "p q r", writes="5=r"),
    row(
        25,
        "the same below a branch",
        [],
        "1=~branch 1/2.1=p 1/3=q",
        branch("p x@2 y@2 q"),
        writes="1/2.2=x@2 1/2.3=y@2",
    ),
    # Branches and things at once.
    row(
        28,
        "deep inside",
        ("a", branch(TEN, branch("e1 e2 e3 e4 e5"))),
        f"1=a 2=~branch {TEN_PLACES} 2/11=~branch {FIVE}",
        "a",
        branch(TEN, branch("e1 e2 e3 e4 n@2 e5")),
        writes="2/11/4.1=n@2",
    ),
    row(
        29,
        "two strands at once",
        None,
        "",
        "a",
        gather(strand("k1"), strand("k2 k3")),
        "b",
        writes="1=a 2=~branch 2/1=k1 3=~branch 3/1=k2 3/2=k3 4=b",
    ),
    row(30, "two steps at once, put in", "a b", "1=a 2=b", "a", gather("x@2 y@2"), "b", writes="1.1=x@2 1.2=y@2"),
    row(
        31,
        "two strands at once, put in",
        "a b c",
        "1=a 2=b 3=c",
        "a",
        task_group(strand("k1", v=2), strand("k2", v=2)),
        "b c",
        writes="1.1=~branch@2 1.1/1=k1@2 1.2=~branch@2 1.2/1=k2@2",
    ),
    row(
        32,
        "one strand, put in",
        "a b c d",
        ABCD,
        "a",
        gather(strand("k", v=2)),
        "b c d",
        writes="1.1=~branch@2 1.1/1=k@2",
    ),
    row(33, "a branch, put in", "a b", "1=a 2=b", "a", branch("k", v=2), "b", writes="1.1=~branch@2 1.1/1=k@2"),
    row(34, "one of three is not there", None, "", gather("x", *(), "y"), writes="1=x 2=y"),
    row(35, "a group in a group", None, "", gather(gather("x y"), "z"), writes="1=x 2=y 3=z"),
    # Removing.
    row(36, "a step taken out", "a b c", "1=a 2=b 3=c", "a -b c"),
    row(37, "taken out before it was ever there", None, "", "a -b c", writes="1=a 2=~gone:b 3=c"),
    row(38, "taken out of a run that never had it", "a c", "1=a 2=c", "a -b c", ignores=("b",)),
    row(
        39,
        "a loop taken out",
        ("a", loop(2, "p q"), "c"),
        "1=a 2=~loop 2/1/1=p 2/1/2=q 2/2/1=p 2/2/2=q 3=c",
        "a -~loop c",
    ),
    # Gates.
    row(
        41,
        "a gate in a run that is past it",
        ("foo bar ~sleep",),
        "1=foo 2=bar 3=~sleep",
        "foo",
        check(2, {1: "bar", 2: "bar_fast@2"}),
        "~sleep",
        notes=(1,),
        advance=100,
    ),
    row(
        42,
        "a gate in a new run",
        None,
        "",
        "foo",
        check(2, {1: "bar", 2: "bar_fast@2"}),
        "~sleep",
        writes="1=foo 2=~check:2@2 3=bar_fast@2 4=~sleep",
        notes=(2,),
        advance=100,
    ),
    row(
        42,
        "a gate in a run that is before it",
        "foo",
        "1=foo",
        "foo",
        check(2, {1: "bar", 2: "bar_fast@2"}),
        "~sleep",
        writes="2=~check:2@2 3=bar_fast@2 4=~sleep",
        notes=(2,),
        advance=100,
    ),
    row(
        43,
        "a gate with a step put in behind it",
        "a b",
        "1=a 2=b",
        "a",
        check(2, {1: "x@2"}),
        "b",
        writes="1.1=x@2",
        notes=(1,),
    ),
    row(
        45,
        "a gate in a branch with a version",
        None,
        "",
        branch(check(2), check(1), v=2),
        writes="1=~branch@2 1/1=~check:2@3 1/2=~check:1@2",
        notes=(2, 1),
    ),
    # Waiting for a while.
    row(46, "a wait that is over", "a", "1=a", "a ~wait b", writes="2=~listen 3=b", notes=("timed out",), advance=4000),
    row(47, "a wait that is answered", "a", "1=a", "a ~wait b", writes="2=~listen 3=b", notes=("now",), signal=True),
    row(
        48,
        "a wait, put in, answered at once",
        "a b",
        "1=a 2=b",
        "a ~wait@2 b",
        writes="1.1=~listen@2",
        notes=("now",),
        signal=True,
    ),
    row(
        49,
        "a wait, put in, answered after a restart",
        ["a b", "a ~wait@2 b"],
        "1=a 1.1=~listen@2 2=b",
        "a ~wait@2 b",
        notes=("now",),
        signal=True,
    ),
    # What is left over.
    row(50, "the last step gone", "a b c", "1=a 2=b 3=c", "a b", parts=("3", "end")),
    row(
        51,
        "a branch put before another without a version",
        ("a", branch("bar baz")),
        "1=a 2=~branch 2/1=bar 2/2=baz",
        "a",
        branch("x@2"),
        branch("bar baz"),
        parts=("2/1", "end"),
    ),
    # Loops.
    row(
        52,
        "a loop",
        None,
        "",
        "a",
        loop(3, "p q"),
        writes="1=a 2=~loop 2/1/1=p 2/1/2=q 2/2/1=p 2/2/2=q 2/3/1=p 2/3/2=q",
    ),
    row(
        53,
        "a step put into the body of a loop",
        ("a", loop(22, "p q", stop_in=21)),
        f"1=a 2=~loop {PQ20} 2/21/1=p 2/21/2=q",
        "a",
        loop(22, "p x@2 q"),
        writes=f"{INTO_ALL} 2/22/1=p 2/22/2=x@2 2/22/3=q",
    ),
    row(
        54,
        "a loop in a loop",
        None,
        "",
        "a",
        loop(5, "p q", loop(1, "k")),
        writes="1=a 2=~loop " + " ".join(f"2/{n}/1=p 2/{n}/2=q 2/{n}/3=~loop 2/{n}/3/1/1=k" for n in range(1, 6)),
    ),
    row(
        55,
        "versions below a loop with a version",
        None,
        "",
        loop(1, "p q@2", v=2),
        writes="1=~loop@2 1/1/1=p@2 1/1/2=q@3",
    ),
    # One rule for versions.
    row(
        56,
        "the lowest version of a branch with a version",
        None,
        "",
        branch("x@1 ~sleep@1 ~set@1 ~run@1 ~listen@1", branch("k", v=1), v=2),
        writes="1=~branch@2 1/1=x@2 1/2=~sleep@2 1/3=~set@2 1/4=~run@2 1/5=~listen@2 1/6=~branch@2 1/6/1=k@2",
        signal=True,
        advance=100,
    ),
    # Replacing.
    row(57, "a step replaced", "a b c", "1=a 2=b 3=c", "a -b n@2 c", writes="2.1=n@2"),
    row(57, "a step replaced, in a new run", None, "", "a -b n@2 c", writes="1=a 2=~gone:b 3=n@2 4=c"),
    row(59, "taken out of a run that is before it", "a", "1=a", "a -b c", writes="2=~gone:b 3=c"),
    row(
        61,
        "a sleep made a wait",
        "a ~sleep b",
        "1=a 2=~sleep 3=b",
        "a ~wait b",
        parts=("2", "type"),
        signal=True,
        advance=100,
    ),
)
