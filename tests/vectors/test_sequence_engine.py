"""Rows of the table on a real store: the old code runs, its engine stops, the new code takes the run up.

Both end by waiting for a signal, so that the run is open while the code is changed; the activity *idle* stands on a
queue without a worker.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from resurgam import Break, Context, Continue, Engine, Registry, errors
from resurgam.core import event as events
from resurgam.core.state import Status
from resurgam.store.memory.store import MemoryStore
from resurgam.testing import Environment, ManualClock, replay
from vectors.event_notation import DAY, HOUR, history, told, workflow


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Divergences are logged; they are expected here."""
    caplog.set_level("CRITICAL", logger="resurgam")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A vector. *gives* is the result of the new code, *ran* what it ran, *new* the commands that it added."""

    number: str
    old: Callable[..., Any]
    new: Callable[..., Any]
    gives: Any = None
    violation: str = ""
    ran: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    open: bool = False
    options: dict[str, Any] = field(default_factory=dict)


def build(code: Callable[..., Any], ran: list[str], **options: Any) -> Registry:
    """Return a registry in which the workflow 'w' has this code, and waits for a signal at its end."""
    registry = Registry()
    for name in (*"ABPQX", "A1", "A2", "B1", "B2", "fb"):
        _add(registry, name, ran)

    async def w(ctx: Context) -> Any:
        value = await code(ctx)
        await ctx.listen("go")
        return value

    registry.workflow(name="w", **{"matching": "sequence", **options})(w)
    return registry


def _add(registry: Registry, name: str, ran: list[str]) -> None:
    @registry.activity(name=name)
    async def activity(value: Any = None) -> str:
        ran.append(name)
        return f"{name}{len(ran)}"


@Registry().activity(queue="nowhere")
async def idle() -> str:
    return "never"


def tasks(*names: str) -> Any:
    async def code(ctx: Context) -> list[str]:
        return [await ctx.activity(name) for name in names]

    return code


def given(*values: str) -> Any:
    async def code(ctx: Context) -> list[str]:
        return [await ctx.activity("P", value) for value in values]

    return code


def begun(*names: str) -> Any:
    async def code(ctx: Context) -> str:
        for name in names:
            ctx.activity(idle if name == "idle" else name)
        return "begun"

    return code


async def nothing(ctx: Context) -> str:
    return "nothing"


def slept(*lengths: float) -> Any:
    async def code(ctx: Context) -> str:
        for length in lengths:
            await ctx.sleep(length)
        return "slept"

    return code


async def either(ctx: Context) -> str:
    index, _ = await ctx.race(ctx.activity(idle), ctx.sleep(0))
    return await ctx.activity(["A", "fb"][index])


def strands(first: tuple[str, ...], second: tuple[str, ...]) -> Any:
    async def code(ctx: Context) -> Any:
        async def strand(names: tuple[str, ...]) -> list[str]:
            return [await ctx.activity(name) for name in names]

        return await asyncio.gather(strand(first), strand(second))

    return code


def ops(*names: str) -> Any:
    async def code(ctx: Context) -> list[str]:
        return [await ctx.run(lambda name=name: name.upper(), name=name) for name in names]

    return code


def sets(key: str, value: int) -> Any:
    async def code(ctx: Context) -> Any:
        ctx.set(key, value)
        return ctx.get(key)

    return code


async def clears(ctx: Context) -> None:
    ctx.clear("k")


async def reads_first(ctx: Context) -> str:
    if ctx.get("x") is None:
        ctx.set("x", 1)
        return await ctx.activity("A")
    return await ctx.activity("B")


async def polls(ctx: Context) -> bool:
    try:
        await ctx.listen("go", timeout=0)
    except TimeoutError:
        return False
    return True


async def a_sleep_b(ctx: Context) -> list[str]:
    return [await ctx.activity("A"), str(await ctx.sleep(HOUR)), await ctx.activity("B")]


async def all_kinds(ctx: Context) -> str:
    value = await ctx.activity("A")
    await ctx.sleep(0)
    ctx.set("k", 1)
    return value


async def with_an_id(ctx: Context) -> list[str]:
    ctx.uuid4()
    return [await ctx.activity("P")]


def loops(*body: str) -> Any:
    async def code(ctx: Context) -> list[str]:
        async def turn(ctx: Context, heard: list[str]) -> Continue[list[str]] | Break[list[str]]:
            heard = [*heard, *[await ctx.activity(name) for name in body]]
            await ctx.listen("turn")
            return Continue(heard) if len(heard) < 2 else Break(heard)

        return await ctx.loop(turn, [], forget_every=None)

    return code


ROWS = [
    Row(number="2", old=tasks("P", "P", "P"), new=tasks("P", "P", "P"), gives=["P1", "P2", "P3"]),
    Row(
        number="3",
        old=tasks("P", "P"),
        new=tasks("P", "P", "P"),
        gives=["P1", "P2", "P1"],
        ran=("P",),
        added=("Task(2) P",),
    ),
    Row(number="4", old=tasks("P", "P", "P"), new=tasks("P", "P"), gives=["P1", "P2"]),
    Row(number="5", old=begun("idle", "idle"), new=begun("idle"), gives="begun"),
    Row(
        number="6",
        old=tasks("A"),
        new=tasks("B"),
        violation="Task type mismatch at Task(0): expected 'B', got 'A'",
    ),
    Row(
        number="7",
        old=tasks("A", "B"),
        new=tasks("B", "A"),
        violation="Task type mismatch at Task(0): expected 'B', got 'A'",
    ),
    Row(number="8", old=tasks(*"ABAB"), new=tasks(*"ABAB"), gives=["A1", "B2", "A3", "B4"]),
    Row(number="9", old=given("a", "b"), new=given("b", "a"), gives=["P1", "P2"]),
    Row(
        number="9, strict",
        old=given("a", "b"),
        new=given("b", "a"),
        options={"input_check": "strict"},
        violation="Task input mismatch at Task(0): expected '",
    ),
    Row(number="16", old=slept(0), new=tasks("X"), gives=["X1"], ran=("X",), added=("Task(0) X",)),
    Row(
        number="16, late_new=error",
        old=slept(0),
        new=tasks("X"),
        options={"late_new": "error"},
        violation="Task order mismatch at Task(0): expected 'X', got 'timer_started'",
    ),
    Row(number="17", old=slept(30 * DAY), new=slept(5, 30 * DAY), open=True),
    Row(
        number="17, strict",
        old=slept(30 * DAY),
        new=slept(5, 30 * DAY),
        options={"input_check": "strict"},
        violation="Timer duration mismatch at Timer(0): expected '5000 ms', got '2592000000 ms'",
    ),
    Row(number="23 and 25", old=either, new=either, gives="fb1"),
    Row(
        number="26",
        old=strands(("A1",), ("B1",)),
        new=strands(("A1", "A2"), ("B1", "B2")),
        gives=[["A11", "A21"], ["B12", "B22"]],
        ran=("A2", "B2"),
        added=("Task(1)@{1} A2", "Task(1)@{2} B2"),
    ),
    Row(
        number="27",
        old=strands(("P",), ("P",)),
        new=strands(("P", "P"), ("P", "P")),
        gives=[["P1", "P1"], ["P2", "P2"]],
        ran=("P", "P"),
        added=("Task(1)@{1} P", "Task(1)@{2} P"),
    ),
    Row(number="34", old=ops("x"), new=ops("x"), gives=["X"]),
    Row(number="35", old=ops("x"), new=ops("x", "y"), gives=["X", "Y"], added=("Operation(1) y",)),
    Row(
        number="36",
        old=ops("fetch-user"),
        new=ops("calculate-total"),
        violation="Operation name mismatch at Operation(0): expected 'calculate-total', got 'fetch-user'",
    ),
    Row(number="39", old=sets("counter", 42), new=sets("counter", 100), gives=100),
    Row(
        number="40",
        old=sets("user-id", 1),
        new=sets("order-id", 1),
        violation="State key mismatch at State(0): expected 'order-id', got 'user-id'",
    ),
    Row(
        number="41",
        old=sets("k", 1),
        new=clears,
        violation="Type mismatch at State(0): expected 'state_cleared', got 'state_set'",
    ),
    Row(number="42", old=reads_first, new=reads_first, gives="A1"),
    Row(number="47", old=polls, new=polls, gives=False),
    Row(number="52", old=with_an_id, new=tasks("P", "P"), gives=["P1", "P1"], ran=("P",), added=("Task(1) P",)),
    Row(
        number="54",
        old=begun("idle"),
        new=begun("B"),
        violation="Task type mismatch at Task(0): expected 'B', got 'idle'",
    ),
    Row(number="56", old=tasks("A", "B"), new=a_sleep_b, gives=["A1", "None", "B2"], added=("Timer(0)",)),
    Row(
        number="56, late_new=error",
        old=tasks("A", "B"),
        new=a_sleep_b,
        options={"late_new": "error"},
        violation="Timer order mismatch at Timer(0): expected 'timer_started', got 'B'",
    ),
    Row(number="63", old=all_kinds, new=tasks("A"), gives=["A1"]),
    Row(
        number="65, unscoped",
        old=tasks("P", "P"),
        new=tasks("P", "Q", "P", "Q"),
        violation="Task type mismatch at Task(1): expected 'Q', got 'P'",
    ),
    Row(
        number="65, in the scopes of a loop",
        old=loops("P"),
        new=loops("P", "Q"),
        gives=["P1", "Q1"],
        ran=("Q",),
        added=("Task(1)@{1, 1} Q", "Listen(0) go"),
    ),
]


def test_the_number_of_rows():
    assert len(ROWS) == 31


@pytest.mark.parametrize("row", ROWS, ids=[row.number for row in ROWS])
async def test_row(row, tmp_path):
    clock, ran = ManualClock(), []
    place = {"store": f"sqlite:///{tmp_path}/w.db", "clock": clock}
    async with Environment(**place, registry=build(row.old, [])) as env:
        handle = await env.start("w", id="x")
        before = await handle.history()
        assert before[0].matching == "sequence"
    new = build(row.new, ran, **row.options)
    async with Engine(place["store"], clock=clock, worker=False, registry=Registry()) as client:
        await client.handle("x").signal("turn")
        await client.handle("x").signal("go")
    async with Environment(**place, registry=new) as env:
        handle = env.engine.handle("x")
        await env.settle()
        if row.open:
            assert (await handle.describe()).status is Status.RUNNING
            await env.advance(31 * DAY)
            await handle.terminate("enough")
            return
        if row.violation:
            await check_failed(handle, row.violation)
        else:
            assert await env.finish(handle.result()) == row.gives
        after = await handle.history()
    assert after[: len(before)] == before
    assert ran == list(row.ran)
    added = [entry for entry in after[len(before) :] if isinstance(entry, events.Command)]
    assert told(added) == list(row.added)


async def check_failed(handle, text):
    with pytest.raises(errors.WorkflowFailed) as failed:
        await handle.result(timeout=0)
    cause = failed.value.cause
    assert isinstance(cause, errors.RemoteError)
    assert cause.type_name == "DETERMINISM_VIOLATION"
    assert str(cause).startswith(text)
    assert (await handle.describe()).status is Status.FAILED


async def test_a_violation_is_for_good(tmp_path):
    """Never retried, and the right code that comes later does not bring the run back."""
    place = {"store": f"sqlite:///{tmp_path}/w.db", "clock": ManualClock()}
    async with Environment(**place, registry=build(tasks("A"), [])) as env:
        await env.start("w", id="x")
    async with Environment(**place, registry=build(tasks("B"), [])) as env:
        await env.engine.handle("x").signal("go")
        await env.settle()
        written = await env.engine.handle("x").history()
    async with Environment(**place, registry=build(tasks("A"), [])) as env:
        await env.advance(DAY)
        await check_failed(env.engine.handle("x"), "Task type mismatch at Task(0)")
        assert await env.engine.handle("x").history() == written
    assert [entry.type for entry in written[-2:]] == ["workflow_failed", "workflow_deactivated"]


async def test_row_58_handles_that_are_made_early_do_not_shift_what_comes_later():
    """Row 58: two activities at once, one answered, a strand between them; the code is unchanged."""

    async def code(ctx: Context) -> list[str]:
        first, second = ctx.activity("A"), ctx.activity(idle)
        heard = await first
        async with asyncio.TaskGroup() as group:
            child = group.create_task(tasks("P")(ctx))
        second.cancel()
        return [heard, *child.result()]

    clock = ManualClock()
    store = MemoryStore(clock)
    ran: list[str] = []
    for _ in range(2):
        async with Environment(store=store, clock=clock, registry=build(code, ran)) as env:
            handle = await env.engine.start("w", id="x", if_exists="attach")
            await env.settle()
    async with Environment(store=store, clock=clock, registry=build(code, ran)) as env:
        await env.engine.handle("x").signal("go")
        assert await env.finish(handle.result()) == ["A1", "P2"]
    assert ran == ["A", "P"]


async def test_row_52_ids_come_from_places_and_are_never_given_twice():
    """Row 52: whatever else draws ids, two activities have two."""
    seen = []
    registry = Registry()

    @registry.activity(name="P")
    async def p() -> None:
        seen.append(registry.activity.info().idempotency_key)

    @registry.workflow(matching="sequence")
    async def w(ctx: Context) -> None:
        await ctx.activity("P")
        ctx.uuid4()
        await ctx.activity("P")

    async with Environment(registry=registry) as env:
        await env.finish((await env.start(w)).result())
    assert len(set(seen)) == 2


async def test_row_57_an_event_of_an_unknown_type_is_refused():
    """Row 57: what is not understood is not replayed as something else."""
    lines = [entry.to_json() for entry in history("task A")]
    unknown = lines[1].replace("activity_scheduled", "activity_teleported")

    with pytest.raises(ValueError, match="activity_teleported"):
        await replay(workflow(tasks("A")), [lines[0], unknown])


class Failing(MemoryStore):
    """A store that cannot read a history for a while."""

    broken = False
    refused = 0

    async def read(self, *args: Any, **kwargs: Any) -> Any:
        if self.broken:
            self.refused += 1
            raise errors.StoreError("the disk is away")
        return await super().read(*args, **kwargs)


async def test_row_61_a_history_that_cannot_be_read_is_not_an_empty_one():
    """Row 61: nothing is run and nothing written until it can be."""
    clock, ran = ManualClock(), []
    store = Failing(clock)
    async with Environment(store=store, clock=clock, registry=build(tasks("A"), ran)) as env:
        first = await env.start("w", id="x")
        before = await first.history()
    async with Engine(store, clock=clock, worker=False, registry=Registry()) as client:
        await client.handle("x").signal("go")
    store.broken = True
    async with Environment(store=store, clock=clock, registry=build(tasks("A"), ran)) as env:
        handle = env.engine.handle("x")
        for _ in range(20):
            await asyncio.sleep(0)
        assert store.refused > 0
        assert list(await MemoryStore.read(store, first)) == before
        store.broken = False
        assert await env.finish(handle.result()) == ["A1"]
        assert (await handle.history())[: len(before)] == before
    assert ran == ["A"]
