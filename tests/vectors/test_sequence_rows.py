"""The vectors of sequence matching: a history, the code that meets it, and what comes of them.

Each row is run three times: by its replay, by a whole execution that goes on from it, and, where it is about the root's
own commands, by the matcher alone. Rows about child workflows and promises stand in `test_sequence_kinds`, those about
stores and workers in `test_sequence_engine`. Row 18 does not apply: our timers have no ids that could differ.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from resurgam import Context
from resurgam.core import event as events
from resurgam.core.state import Status
from resurgam.errors import ActivityFailed, DeterminismViolation
from resurgam.testing import Simulation, replay
from resurgam.testing.simulation import START, Follower
from vectors.event_notation import DAY, HOUR, answer_of, history, registry_of, told, workflow


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Divergences are logged; they are expected here."""
    caplog.set_level("CRITICAL", logger="resurgam")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A vector. *gives*: the result, an error's text, or None while the code waits."""

    number: str
    log: str
    code: Callable[..., Any]
    gives: Any = None
    fails: type[BaseException] | None = None
    violation: str = ""
    new: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


# Code.


def times(count: int, name: str = "P") -> Any:
    async def code(ctx: Context) -> list[str]:
        return [await ctx.activity(name) for _ in range(count)]

    return code


def tasks(*names: str) -> Any:
    async def code(ctx: Context) -> list[str]:
        return [await ctx.activity(name) for name in names]

    return code


def joined(*names: str) -> Any:
    async def code(ctx: Context) -> list[str]:
        return await asyncio.gather(*(ctx.activity(name) for name in names))

    return code


async def in_pairs(ctx: Context) -> list[str]:
    return [await ctx.activity(name) for _ in range(2) for name in "AB"]


async def b_then_a(ctx: Context) -> list[str]:
    return [await ctx.activity("P", "b"), await ctx.activity("P", "a")]


async def two_and_a_sleep(ctx: Context) -> list[Any]:
    return await asyncio.gather(ctx.activity("A"), ctx.activity("B"), ctx.sleep(5))


def sleeps(*lengths: float) -> Any:
    async def code(ctx: Context) -> str:
        for length in lengths:
            await ctx.sleep(length)
        return "awake"

    return code


async def in_time(ctx: Context) -> str:
    try:
        async with asyncio.timeout(5):
            return await ctx.activity("slow")
    except TimeoutError:
        return "late"


async def in_time_or_else(ctx: Context) -> str:
    slow, timer = ctx.activity("slow"), ctx.sleep(5)
    index, value = await ctx.race(slow, timer)
    return str(value) if index == 0 else await ctx.activity("fb")


async def first_of_two(ctx: Context) -> list[Any]:
    index, value = await ctx.race(ctx.activity("p"), ctx.activity("f"))
    return [index, value]


async def first_and_after(ctx: Context) -> list[Any]:
    index, value = await ctx.race(ctx.activity("p"), ctx.activity("f"))
    return [index, value, await ctx.activity(f"after-{index}")]


def strands(*names: tuple[str, str]) -> Any:
    async def code(ctx: Context) -> list[list[str]]:
        async def strand(pair: tuple[str, str]) -> list[str]:
            return [await ctx.activity(name) for name in pair]

        return await asyncio.gather(*map(strand, names))

    return code


def ops(*names: str) -> Any:
    async def code(ctx: Context) -> list[str]:
        return [await ctx.run(lambda name=name: f"{name} ran", name=name) for name in names]

    return code


async def op_sleep_op(ctx: Context) -> list[str]:
    first = await ctx.run(lambda: "ran", name="op-1")
    await ctx.sleep(5)
    return [first, await ctx.run(lambda: "ran", name="op-2")]


async def sets_and_clears(ctx: Context) -> list[Any]:
    ctx.set("counter", 100)
    ctx.clear("temp")
    return [ctx.get("counter"), ctx.get("temp")]


def sets(key: str) -> Any:
    async def code(ctx: Context) -> None:
        ctx.set(key, 1)

    return code


async def clears_k(ctx: Context) -> None:
    ctx.clear("k")


async def reads_first(ctx: Context) -> str:
    if ctx.get("x") is None:
        ctx.set("x", 1)
        return await ctx.activity("A")
    return await ctx.activity("B")


async def polls(ctx: Context) -> list[Any]:
    """Look whether a signal is there by giving it no time to come."""
    first = True
    try:
        await ctx.listen("go", timeout=0)
    except TimeoutError:
        first = False
    return [first, await ctx.activity("A"), await ctx.listen("go")]


async def drains(ctx: Context) -> list[Any]:
    heard: list[Any] = []
    try:
        while True:
            heard.append(await ctx.listen("n", timeout=0))
    except TimeoutError:
        return [heard, await ctx.activity("A")]


async def three_waits(ctx: Context) -> list[Any]:
    return [await ctx.listen("n"), await ctx.listen("m"), await ctx.listen("n")]


async def until_then_an_hour(ctx: Context) -> str:
    await ctx.sleep_until(datetime.fromtimestamp(START / 1000 - 60, UTC))
    await ctx.sleep(HOUR)
    return "awake"


async def never_awaited(ctx: Context) -> str:
    ctx.activity("B")
    return "returned"


async def swallows(ctx: Context) -> str:
    try:
        return await ctx.activity("A")
    except Exception:
        return "swallowed"


async def a_sleep_b(ctx: Context) -> list[str]:
    first = await ctx.activity("A")
    await ctx.sleep(HOUR)
    return [first, await ctx.activity("B")]


async def races_nobody(ctx: Context) -> None:
    await ctx.race()


async def p_then_q(ctx: Context) -> list[str]:
    return [await ctx.activity(name) for _ in range(2) for name in "PQ"]


THREE = 'task P | done 0 "r1" | task P | done 1 "r2" | task P | done 2 "r3"'
BOTH = 'branch | branch | task {0} @{{1}} | task {1} @{{2}} | done 2 "first"'
LATE = 'task slow | timer 5 | race 2 | fired 1 | won 2 1 | cancelled 0 | task fb | done 3 "fb"'

ROWS = [
    Row(number="1", log="", code=times(3), new=("Task(0) P",)),
    Row(number="2", log=THREE, code=times(3), gives=["r1", "r2", "r3"]),
    Row(number="3", log=THREE, code=times(4), new=("Task(3) P",)),
    Row(number="4", log=THREE, code=times(2), gives=["r1", "r2"], orphans=("Task(2) P",)),
    Row(number="5", log='task P | done 0 "r" | task P', code=times(1), gives=["r"], orphans=("Task(1) P",)),
    Row(
        number="5, answered late",
        log='task P | done 0 "r" | task P | done 1 "late"',
        code=times(1),
        gives=["r"],
        orphans=("Task(1) P",),
    ),
    Row(
        number="6",
        log="task ProcessPayment",
        code=tasks("SendEmail"),
        violation="Task type mismatch at Task(0): expected 'SendEmail', got 'ProcessPayment'",
    ),
    Row(
        number="7",
        log="task A | done 0 1 | task B | done 1 2",
        code=tasks("B", "A"),
        violation="Task type mismatch at Task(0): expected 'B', got 'A'",
    ),
    Row(
        number="8",
        log='task A | done 0 "A1" | task B | done 1 "B1" | task A | done 2 "A2" | task B | done 3 "B2"',
        code=in_pairs,
        gives=["A1", "B1", "A2", "B2"],
    ),
    Row(
        number="9",
        log='task P "a" | done 0 "ra" | task P "b" | done 1 "rb"',
        code=b_then_a,
        gives=["ra", "rb"],
    ),
    Row(
        number="9, strict",
        log='task P "a" | done 0 "ra" | task P "b" | done 1 "rb"',
        code=b_then_a,
        options={"input_check": "strict"},
        violation="Task input mismatch at Task(0): expected '",
    ),
    Row(number="10", log="", code=two_and_a_sleep, new=("Task(0) A", "Task(1) B", "Timer(0)")),
    Row(
        number="11",
        log='task A | task B | timer 5 | done 1 "b" | done 0 "a" | fired 2',
        code=two_and_a_sleep,
        gives=["a", "b", None],
    ),
    Row(
        number="13",
        log='task A | task B | task P | done 0 "a" | failed 1 Number 2 is unlucky',
        code=joined("A", "B", "P"),
        fails=ActivityFailed,
        gives="Number 2 is unlucky",
    ),
    Row(number="14", log='task A | task B | done 0 "a"', code=joined("A", "B")),
    Row(number="16", log="timer 5", code=tasks("X"), new=("Task(0) X",), orphans=("Timer(0)",)),
    Row(
        number="16, late_new=error",
        log="timer 5",
        code=tasks("X"),
        options={"late_new": "error"},
        violation="Task order mismatch at Task(0): expected 'X', got 'timer_started'",
    ),
    Row(number="17", log=f"timer {30 * DAY}", code=sleeps(5, 30 * DAY)),
    Row(
        number="17, strict",
        log=f"timer {30 * DAY}",
        code=sleeps(5, 30 * DAY),
        options={"input_check": "strict"},
        violation="Timer duration mismatch at Timer(0): expected '5000 ms', got '2592000000 ms'",
    ),
    Row(number="19, fired", log="timer 5 | fired 0", code=sleeps(5), gives="awake"),
    Row(number="19, running", log="timer 5", code=sleeps(5)),
    Row(number="20", log="timer 5 | cancelled 0", code=sleeps(5), fails=asyncio.CancelledError),
    Row(number="21", log='timer 5 | task slow | done 1 "in time" | cancelled 0', code=in_time, gives="in time"),
    Row(number="22", log="timer 5 | task slow | fired 0 | cancelled 1", code=in_time, gives="late"),
    Row(number="23", log=LATE, code=in_time_or_else, gives="fb"),
    Row(number="24", log='task p | task f | race 2 | done 1 "f" | won 2 1', code=first_of_two, gives=[1, "f"]),
    Row(
        number="25",
        log='task p | task f | race 2 | done 1 "f" | won 2 1 | cancelled 0 | task after-1 | done 3 "after"',
        code=first_and_after,
        gives=[1, "f", "after"],
    ),
    Row(
        number="26",
        log=BOTH.format("A1", "B1"),
        code=strands(("A1", "A2"), ("B1", "B2")),
        new=("Task(1)@{1} A2",),
    ),
    Row(number="27", log=BOTH.format("P", "P"), code=strands(("P", "P"), ("P", "P")), new=("Task(1)@{1} P",)),
    Row(number="34", log='op op-1 | done 0 "r"', code=ops("op-1"), gives=["r"]),
    Row(number="35", log='op op-1 | done 0 "r"', code=ops("op-1", "op-2"), new=("Operation(1) op-2",)),
    Row(
        number="36",
        log='op fetch-user | done 0 "r"',
        code=ops("calculate-total"),
        violation="Operation name mismatch at Operation(0): expected 'calculate-total', got 'fetch-user'",
    ),
    Row(
        number="38",
        log='op op-1 | done 0 "r1" | timer 5 | fired 1 | op op-2 | done 2 "r2"',
        code=op_sleep_op,
        gives=["r1", "r2"],
    ),
    Row(number="39", log="set counter 42 | clear temp", code=sets_and_clears, gives=[100, None]),
    Row(
        number="40",
        log="set user-id 1",
        code=sets("order-id"),
        violation="State key mismatch at State(0): expected 'order-id', got 'user-id'",
    ),
    Row(
        number="41",
        log="set k 1",
        code=clears_k,
        violation="Type mismatch at State(0): expected 'state_cleared', got 'state_set'",
    ),
    Row(number="42", log='set x 1 | task A | done 1 "A"', code=reads_first, gives="A"),
    Row(
        number="47",
        log="listen go | lapsed 0 | task A | signal go 1 | done 1 2 | listen go | heard 2 0",
        code=polls,
        gives=[False, 2, 1],
    ),
    Row(
        number="48",
        log="signal n 1 | listen n | heard 0 0 | listen n | lapsed 1 | task A | signal n 2 | done 2 3",
        code=drains,
        gives=[[1], 3],
    ),
    Row(
        number="49",
        log="signal n 1 | signal n 2 | signal m 9 | listen n | heard 0 0 | listen m | heard 1 2 | listen n | heard 2 1",
        code=three_waits,
        gives=[1, 9, 2],
    ),
    Row(number="50", log="task A | cancelled 0", code=tasks("A"), fails=asyncio.CancelledError),
    Row(number="52", log='task P | done 0 "r"', code=tasks("P", "P"), new=("Task(1) P",)),
    Row(number="53", log="timer -60 | fired 0", code=until_then_an_hour, new=("Timer(1)",)),
    Row(
        number="54",
        log="task A",
        code=never_awaited,
        violation="Task type mismatch at Task(0): expected 'B', got 'A'",
    ),
    Row(number="55", log="task A", code=swallows),
    Row(
        number="56",
        log='task A | done 0 "a" | task B | done 1 "b"',
        code=a_sleep_b,
        new=("Timer(0)",),
        orphans=("Task(1) B",),
    ),
    Row(
        number="56, late_new=error",
        log='task A | done 0 "a" | task B | done 1 "b"',
        code=a_sleep_b,
        options={"late_new": "error"},
        violation="Timer order mismatch at Timer(0): expected 'timer_started', got 'B'",
    ),
    Row(number="60", log="", code=races_nobody, fails=ValueError, gives="at least one competitor"),
    Row(
        number="63",
        log='task A | done 0 "a" | timer 5 | fired 1 | set k 1',
        code=tasks("A"),
        gives=["a"],
        orphans=("Timer(0)", "State(0) k"),
    ),
    Row(
        number="65, unscoped",
        log='task P | done 0 "r1" | task P',
        code=p_then_q,
        violation="Task type mismatch at Task(1): expected 'Q', got 'P'",
    ),
]
each_row = pytest.mark.parametrize("row", ROWS, ids=[row.number for row in ROWS])
APART = {"15", "28", "29", "30", "31", "32", "44", "45", "46", "57", "58", "61", "65", "66"}
"""Rows that stand in the other files of this folder."""


def test_every_row_is_here_or_in_another_file():
    """57 rows of the table apply; row 18 does not."""
    here = {row.number.partition(",")[0] for row in ROWS}
    assert len(ROWS) == 50
    assert len(here | APART) == 57
    assert here & APART == {"65"}


@each_row
async def test_replay(row):
    report = await replay(workflow(row.code, **row.options), history(row.log))

    assert told(report.new) == list(row.new if not row.violation else ())
    if row.violation:
        assert isinstance(report.diverged, DeterminismViolation)
        assert str(report.diverged).startswith(row.violation)
        assert not report.finished
        return
    assert report.diverged is None
    assert told(report.orphans) == list(row.orphans)
    assert report.finished == (row.gives is not None or row.fails is not None)
    if row.fails is asyncio.CancelledError:
        assert (report.result, report.error) == (None, None)
    elif row.fails is not None:
        assert type(report.error) is row.fails
        assert row.gives in str(report.error)
    else:
        assert report.result == row.gives


@each_row
async def test_an_execution_that_goes_on_from_there(row):
    """What is recorded is kept, a violation fails the run for good, and everything else comes to its end."""
    log, registry = history(row.log), registry_of()
    messages = [events.SignalReceived(name="go", id="late")]
    world = Simulation(workflow(row.code, **row.options), log=log, registry=registry, messages=messages)

    whole = await world.run()

    assert whole[: len(log)] == log
    if row.violation:
        failed = whole[len(log)]
        assert isinstance(failed, events.WorkflowFailed)
        assert failed.failure.type == "DETERMINISM_VIOLATION"
        assert failed.failure.message.startswith(row.violation)
        assert world.performed == []
    elif row.fails is not None:
        assert world.status is Status.FAILED
    else:
        assert world.status is Status.COMPLETED
        assert row.gives is None or answer_of(whole) == row.gives
        again = await replay(workflow(row.code, **row.options), whole)
        assert (again.diverged, again.new, told(again.orphans)) == (None, (), list(told_orphans(row, whole)))


def told_orphans(row: Row, whole: list[events.Event]) -> tuple[str, ...]:
    """Return what is an orphan in the end: a step that comes late is asked for after all."""
    return () if row.number == "56" else row.orphans


@each_row
async def test_row_66_the_same_history_twice_gives_the_same_twice(row):
    """Row 66: commands, outcomes and ids of a second activation are those of the first."""
    first, second = [
        await Simulation(
            workflow(row.code, **row.options),
            log=history(row.log),
            registry=registry_of(),
            messages=[events.SignalReceived(name="go", id="late")],
        ).run()
        for _ in range(2)
    ]
    reports = [await replay(workflow(row.code, **row.options), history(row.log)) for _ in range(2)]

    assert [entry.to_json() for entry in first] == [entry.to_json() for entry in second]
    assert reports[0].new == reports[1].new
    assert str(reports[0].diverged) == str(reports[1].diverged)


@each_row
async def test_every_cut_of_what_came_of_it_goes_on_the_same_way(row):
    """A crash after any entry that is new changes nothing."""
    if row.violation:
        return
    code, registry = workflow(row.code, **row.options), registry_of()
    messages = [events.SignalReceived(name="go", id="late")]
    whole = await Simulation(code, log=history(row.log), registry=registry, messages=messages).run()
    end = next(entry.seq for entry in whole if entry.type in ("workflow_completed", "workflow_failed"))
    for length in range(len(history(row.log)), end):
        world = Simulation(code, log=whole[:length], registry=registry, messages=messages, chooser=Follower(whole))
        assert [entry.type for entry in await world.run()] == [entry.type for entry in whole]
