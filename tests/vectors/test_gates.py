"""The answer of a version check never flips, whatever is done to the code around it.

A story is a run through several deployments. After each of them the run is loaded again, and all its checks must answer
what they answered before.
"""

from dataclasses import dataclass

import pytest

from resurgam.testing import replay
from vectors.deployments import World, found
from vectors.history_notation import place
from vectors.player import player, workflow
from vectors.program_notation import Call, Program, branch, check, loop, program, removed
from vectors.remedies import remedied

Deployed = tuple[Program, list[int]]


@dataclass(frozen=True)
class Story:
    """What was run first, then each new program with what its checks answer; *history* is what stands there at last."""

    title: str
    first: Program
    then: tuple[Deployed, ...]
    history: str

    def __str__(self) -> str:
        return self.title


def story(title: str, first: "str | Program", *then: Deployed, history: str) -> Story:
    return Story(title, program(first), then, history)


def code(*given: "str | Call", answers: list[int]) -> Deployed:
    return program(*given), answers


def gate(one: str, two: str = "n@2", three: str | None = None, *, name: str | None = None) -> Call:
    """Return a check with two arms, or three."""
    arms = {1: one, 2: two} if three is None else {1: one, 2: two, 3: three}
    return check(len(arms), arms, name=name)


LATER = gate("b", "n@2", "k@3")

STORIES = (
    story(
        "only new runs, one that is past the gate",
        "a b",
        code("a", gate("b"), "c", answers=[1]),
        code("a", LATER, "c", answers=[1]),
        history="1=a 2=b 3=c",
    ),
    story(
        "only new runs, one that is before the gate",
        "a",
        code("a", gate("b"), "c", answers=[2]),
        code("a", LATER, "c", answers=[2]),
        history="1=a 2=~check:2@2 3=n@2 4=c",
    ),
    story(
        "only new runs, one born with three arms",
        (),
        code("a", LATER, "c", answers=[3]),
        history="1=a 2=~check:3@3 3=k@3 4=c",
    ),
    story(
        "a gate raised to three before a run comes there",
        "a",
        code("a", answers=[]),
        code("a", LATER, "c", answers=[3]),
        history="1=a 2=~check:3@3 3=k@3 4=c",
    ),
    story(
        "steps put into the old arm, and taken out again",
        "a b c",
        code("a", gate("b"), "c", answers=[1]),
        code("a", gate("x@2 b"), "c", answers=[1]),
        code("a", gate("y@3 x@2 b"), "c", answers=[1]),
        code("a", gate("y@3 x@2 z@2 b"), "c", answers=[1]),
        code("a", gate("-y x@2 z@2 b"), "c", answers=[1]),
        code("a", gate("-y -x z@2 b"), "c", answers=[1]),
        code("a", gate("-y -x -z b"), "c", answers=[1]),
        code("a", gate("-y -x -z -b"), "c", answers=[1]),
        history="1=a 1.0.1=y@3 1.1=x@2 1.2=z@2 2=b 3=c",
    ),
    story(
        "steps put into the new arm",
        "a",
        code("a", gate("b"), "c", answers=[2]),
        code("a", gate("b", "x@3 n@2"), "c", answers=[2]),
        code("a", gate("b", "x@3 n@2 y@2"), "c", answers=[2]),
        code("a", gate("b", "x@3 -n y@2"), "c", answers=[2]),
        history="1=a 2=~check:2@2 2.1=x@3 3=n@2 3.1=y@2 4=c",
    ),
    story(
        "steps put in on either side of a gate",
        "a b c",
        code("a", gate("x@2 b"), "c", answers=[1]),
        code("a y@3", gate("x@2 b"), "c", answers=[1]),
        code("a y@3", gate("z@3 x@2 b"), "c", answers=[1]),
        code("a y@3 k@4", gate("z@3 x@2 b"), "c", answers=[1]),
        code("a -y k@4", gate("z@3 -x b"), "c", answers=[1]),
        history="1=a 1.0.1=y@3 1.0.1.1=k@4 1.0.2=z@3 1.1=x@2 2=b 3=c",
    ),
    story(
        "a step put in before a gate that was answered by its own entry",
        "a",
        code("a", gate("b"), "c", answers=[2]),
        code("a x@3", gate("b"), "c", answers=[2]),
        code("a x@3", gate("b", "y@3 n@2"), "c", answers=[2]),
        code("a -x", gate("b", "y@3 n@2"), "c", answers=[2]),
        history="1=a 1.1=x@3 2=~check:2@2 2.1=y@3 3=n@2 4=c",
    ),
    story(
        "a step put in behind what follows the gate",
        "a b c",
        code("a", gate("b x@2"), "c", answers=[1]),
        code("a", gate("-b x@2"), "c", answers=[1]),
        code("a", gate("-b n@3 x@2"), "c", answers=[1]),
        history="1=a 2=b 2.0.1=n@3 2.1=x@2 3=c",
    ),
    story(
        "several gates in a row",
        "a b c",
        code("a", check(2), check(2), "b c", answers=[1, 1]),
        code("a", check(2), check(2), "x@2 b c", answers=[1, 1]),
        code("a", check(2), "y@3", check(2), "x@2 b c", answers=[1, 1]),
        code("a", check(2), "y@3", check(3), "z@3 x@2 b c", answers=[1, 1]),
        code("a", check(2), "-y", check(3), "z@3 -x b c", answers=[1, 1]),
        history="1=a 1.0.1=y@3 1.0.2=z@3 1.1=x@2 2=b 3=c",
    ),
    story(
        "several gates with names, met one by one",
        "a",
        code("a", check(2, name="one"), "b", answers=[2]),
        code("a", check(2, name="one"), "b", check(2, name="two"), "c", answers=[2, 2]),
        code("a", check(3, name="one"), "x@2 b", check(3, name="two"), "y@2 c", answers=[2, 2]),
        history="1=a 2=~check:2@2 2.1=x@2 3=b 4=~check:2@2 4.1=y@2 5=c",
    ),
    story(
        "a gate with a name where nothing was checked",
        "a b",
        code("a", gate("b", name="one"), "c", answers=[1]),
        code("a", gate("x@2 b", name="one"), "c", answers=[1]),
        code("a", gate("x@2 b", name="another"), "c", answers=[1]),
        history="1=a 1.1=x@2 2=b 3=c",
    ),
    story(
        "a gate that is given a name",
        "a",
        code("a", gate("b"), "c", answers=[2]),
        code("a", gate("b", name="one"), "c", answers=[2]),
        history="1=a 2=~check:2@2 3=n@2 4=c",
    ),
    story(
        "a gate that is retired, in a run that has it",
        "a",
        code("a", check(2, name="one"), "n@2 c", answers=[2]),
        code("a", removed("check_version", "one"), "n@2 c", answers=[]),
        history="1=a 2=~check:2@2 3=n@2 4=c",
    ),
    story(
        "a gate that is retired, in a new run",
        "a",
        code("a", removed("check_version", "one"), "n@2 c", answers=[]),
        code("a", removed("check_version", "one"), "n@2 c", answers=[]),
        history="1=a 2=~gone:one 3=n@2 4=c",
    ),
    story(
        "a gate behind the mark of a removed step",
        "a -b",
        code("a", check(2), "-b c", answers=[1]),
        code("a", check(2), "x@2 -b c", answers=[1]),
        history="1=a 1.1=x@2 2=~gone:b 3=c",
    ),
    story(
        "a gate in a branch with a version",
        program("a", branch("b", v=3)),
        code("a", branch(check(2), "b", v=3), answers=[1]),
        code("a", branch(check(2), "x@2 b", v=3), answers=[1]),
        code("a", branch(check(2), "y@3 x@2 b c", v=3), answers=[1]),
        history="1=a 2=~branch@3 2/0.0.1=y@5 2/0.1=x@4 2/1=b@3 2/2=c@3",
    ),
    story(
        "a gate before the first step",
        "a",
        code(check(2), "a", answers=[1]),
        code(check(2), "x@2 a", answers=[1]),
        code("y@3", check(2), "x@2 a", answers=[1]),
        history="0.0.1=y@3 0.1=x@2 1=a",
    ),
    story(
        "a gate in the body of a loop is decided for each iteration",
        program("a", loop(2, "p", stop_in=1)),
        code("a", loop(2, check(2, {1: "p", 2: "q@2"})), answers=[1, 2]),
        code("a", loop(2, check(3, {1: "x@2 p", 2: "q@2"})), answers=[1, 2]),
        history="1=a 2=~loop 2/1/0.1=x@2 2/1/1=p 2/2/1=~check:2@2 2/2/2=q@2",
    ),
)


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Divergences are logged; they are expected here."""
    caplog.set_level("CRITICAL", logger="resurgam")


@pytest.mark.parametrize("story", STORIES, ids=str)
async def test_the_answer_of_a_gate_never_flips(world: World, story: Story):
    await world.deploy(story.first)
    for calls, answers in story.then:
        done = await world.deploy(calls)
        assert (done.status, done.error) == ("running", None)
        report = await replay(workflow(player(calls)), done.log)
        assert (report.diverged, report.new) == (None, ())
        assert report.result == answers
    assert done.history == story.history
    again = await world.deploy(calls, open_end=False)
    assert (again.status, again.written, again.result) == ("completed", "", answers)
    assert all(count == 1 for count in world.ran.values())


ONE, TWO = check(2, name="one"), check(2, name="two")
DROPPED: dict[str, tuple[Program, Program, list[int]]] = {
    "a gate is dropped": (program("a", check(2), "b"), program("a b"), [2]),
    "a gate and its arm are dropped": (program("a", check(2, {2: "n@2"}), "b"), program("a b"), [2]),
    "one of two is dropped": (program("a", ONE, TWO, "b"), program("a", TWO, "b"), [2, 2, 2]),
    "a gate gets another name": (program("a", ONE, "b"), program("a", TWO, "b"), [2, 2]),
}
"""Old code, new code, and what the checks answer once the remedy is written."""


@pytest.mark.parametrize("title", DROPPED)
async def test_a_gate_that_histories_hold_is_not_dropped_unnoticed(world: World, title: str):
    old, new, answers = DROPPED[title]
    await world.deploy(old)
    ran, past = dict(world.ran), list(world.log)

    done = await world.deploy(new, open_end=False)

    assert done.status == "diverged"
    assert (done.written, dict(world.ran)) == ("", ran)
    error = await found(player(new), past)
    assert error is not None
    assert (place(error.location), f"{type(error).__name__}: {error}") == ("2", done.error)
    assert error.remedy
    again = await world.deploy(await remedied(new, past, tuple(error.remedy)), open_end=False)
    assert (again.status, again.written, again.result) == ("completed", "", answers)
    assert dict(world.ran) == ran


async def test_a_gate_may_be_put_before_one_of_another_name(world: World):
    """It has no entry of its own there, and the other one tells of which version the run is."""
    await world.deploy(program("a", TWO, "b"))
    done = await world.deploy(program("a", ONE, TWO, "b"), open_end=False)
    assert (done.status, done.written, done.result) == ("completed", "", [2, 2])
