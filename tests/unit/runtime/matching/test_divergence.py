"""Code that does not fit a recorded history: the divergence found, its report, and that it cannot be swallowed."""

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from resurgam import Context, Registry
from resurgam.core import event as events
from resurgam.core.failure import rebuild
from resurgam.core.state import Status
from resurgam.errors import HistoryDiverged, LatentHistory, RemoteError
from resurgam.runtime.definitions.settings import Settings
from resurgam.runtime.rehearsal.query import answer_query
from resurgam.runtime.rehearsal.verify import verify
from resurgam.testing import Environment, Report, Simulation, replay
from resurgam.testing.simulation import start_event

registry = Registry()


@registry.activity
async def a(value: int = 0) -> int:
    return value


@registry.activity
async def b(value: int = 0) -> int:
    return value


def version(function: Any) -> Any:
    """Return the workflow 'w' with this body, in a registry of its own."""
    own = registry.copy()
    return own.workflow(name="w")(function), own


async def recorded(function: Any) -> list[events.Event]:
    """Return the history of an old version."""
    workflow, own = version(function)
    return await Simulation(workflow, registry=own).run()


async def against(function: Any, log: list[events.Event]) -> Report:
    """Replay a history against a new version."""
    return await replay(version(function)[0], log)


def open_part(log: list[events.Event]) -> list[events.Event]:
    """Return a history without its end, as that of a run which is still open."""
    return [entry for entry in log if not entry.type.startswith("workflow_") or entry.seq == 1]


async def old(ctx: Context) -> int:
    await ctx.activity(a)
    await ctx.activity(b)
    return 1


async def test_the_same_code_fits():
    report = await against(old, await recorded(old))

    assert report == Report(new=(), diverged=None, result=1, finished=True)


async def test_another_name_at_a_location_is_a_divergence_with_all_its_fields():
    async def new(ctx: Context) -> int:
        await ctx.activity(a)
        await ctx.activity(a)
        return 1

    report = await against(new, await recorded(old))

    found = report.diverged
    assert isinstance(found, HistoryDiverged)
    assert (str(found.location), found.command, found.field) == ("{2}", "Task(1)", "name")
    assert (found.code_value, found.history_value, found.event_seq) == ("a", "b", 4)
    assert found.source.startswith(f"{__file__}:")
    assert "Task(1) at {2}" in str(found)
    assert "the code has name 'a', entry 4 of the history has 'b'" in str(found)


async def test_another_kind_at_a_location_is_a_divergence():
    async def new(ctx: Context) -> int:
        await ctx.activity(a)
        await ctx.sleep(1)
        return 1

    found = (await against(new, await recorded(old))).diverged

    assert found is not None
    assert (found.field, found.code_value, found.history_value) == ("type", "timer_started", "activity_scheduled")


async def test_code_that_ends_before_its_history_diverges():
    async def new(ctx: Context) -> int:
        return await ctx.activity(a)

    found = (await against(new, await recorded(old))).diverged

    assert isinstance(found, LatentHistory)
    assert str(found) == (
        "the code of scope {} ended, but its history continues with Task(1) 'b' at {2} (entry 4); "
        "the remedy: put back await ctx.removed.activity('b') at the end"
    )


async def test_a_branch_that_ends_before_its_history_diverges():
    async def before(ctx: Context) -> None:
        async def part(ctx: Context) -> None:
            await ctx.activity(a)
            await ctx.activity(b)

        await ctx.branch(part)
        await ctx.activity(a)

    async def after(ctx: Context) -> None:
        async def part(ctx: Context) -> None:
            await ctx.activity(a)

        await ctx.branch(part)
        await ctx.activity(a)

    found = (await against(after, await recorded(before))).diverged

    assert isinstance(found, HistoryDiverged)


async def test_steps_appended_at_the_end_are_new_and_fit():
    async def new(ctx: Context) -> int:
        await old(ctx)
        await ctx.activity(a, 5)
        return 2

    report = await against(new, open_part(await recorded(old)))

    assert report.diverged is None
    assert [(str(c.location), c.type, c.name) for c in report.new] == [("{3}", "activity_scheduled", "a")]


async def test_an_answer_to_a_call_that_was_not_made_is_a_divergence():
    async def before(ctx: Context) -> None:
        await asyncio.gather(ctx.activity(a), ctx.activity(b))

    async def after(ctx: Context) -> None:
        await ctx.activity(a)
        await ctx.activity(b)

    log = open_part(await recorded(before))
    log = [*log[:3], events.ActivityCompleted(seq=4, at=log[0].at, ref=3)]

    found = (await against(after, log)).diverged

    assert found is not None
    assert found.field == "order"
    assert found.history_value == "activity_completed of b"


async def test_a_recorded_value_that_no_longer_decodes_is_a_divergence():
    log = await recorded(old)
    own = Registry()

    @own.activity(name="a")
    async def changed(value: int = 0) -> list[str]:
        return []

    own.activity(name="b")(b.function)

    @own.workflow
    async def w(ctx: Context) -> int:
        await ctx.activity(changed)
        await ctx.activity(b)
        return 1

    found = (await replay(w, log)).diverged

    assert found is not None
    assert (found.field, found.code_value) == ("type", "a type that does not fit (Expected array, got int)")


async def test_an_exception_before_the_end_of_the_history_is_a_divergence_not_a_failure():
    """A typo in a deployment must not fail every open run."""

    async def typo(ctx: Context) -> int:
        await ctx.activity(a)
        raise NameError("name 'recipt' is not defined")

    found = (await against(typo, await recorded(old))).diverged

    assert found is not None
    assert found.code_value == "NameError: name 'recipt' is not defined"


async def test_an_exception_in_the_tick_of_a_new_entry_is_a_failure():
    async def failing(ctx: Context) -> int:
        await ctx.activity(a)
        raise ValueError("no")

    log = await recorded(failing)

    assert log[-2].type == "workflow_failed"
    assert (await against(failing, log)).diverged is None


async def test_code_that_continues_after_a_recorded_end_is_a_divergence():
    async def longer(ctx: Context) -> int:
        await old(ctx)
        await ctx.activity(a)
        return 1

    found = (await against(longer, await recorded(old))).diverged

    assert found is not None
    assert (str(found.location), found.field) == ("{3}", "end")
    assert (found.code_value, found.history_value) == ("goes on with a", "workflow_completed")


async def swallow_all(ctx: Context) -> int:
    for _ in range(3):
        try:
            await ctx.activity(b)
        except BaseException:
            continue
    return 7


async def swallow_in_gather(ctx: Context) -> int:
    async def one() -> None:
        await ctx.activity(b)

    await asyncio.gather(one(), one(), return_exceptions=True)
    return 7


async def swallow_unawaited(ctx: Context) -> int:
    async def one() -> None:
        await ctx.activity(b)

    task = asyncio.create_task(one())
    await asyncio.sleep(0)
    task.cancel()
    return 7


@pytest.mark.parametrize("code", [swallow_all, swallow_in_gather, swallow_unawaited])
async def test_a_divergence_cannot_be_swallowed(code):
    report = await against(code, await recorded(old))

    assert report.diverged is not None
    assert report.result is None


async def test_a_diverged_run_is_parked_and_continued_by_a_worker_whose_code_fits():
    """Only the diagnosis is written, the wrong code does nothing, and the right code continues."""
    done: list[str] = []
    fits = registry.copy()

    @fits.workflow(name="w")
    async def w(ctx: Context) -> str:
        await ctx.activity(a, 1)
        value = await ctx.listen("go", type=str)
        await ctx.activity(b, 2)
        return value

    wrong = registry.copy()

    @wrong.activity
    async def c() -> None:
        done.append("c")

    @wrong.workflow(name="w")
    async def other(ctx: Context) -> None:
        await ctx.activity(c)

    from resurgam.store.memory.store import MemoryStore
    from resurgam.testing import ManualClock

    clock = ManualClock()
    store = MemoryStore(clock)
    async with Environment(store=store, clock=clock, registry=fits) as first:
        handle = await first.start(w, id="w-1")
        before = await handle.history()
    async with Environment(store=store, clock=clock, registry=wrong) as second:
        await second.engine.handle("w-1").signal("go", "now")
        await second.settle()
        found = await second.engine.handle("w-1").describe()
        with pytest.raises(TimeoutError, match="it is diverged: HistoryDiverged: Task"):
            await second.engine.handle("w-1").result(timeout=0)
        assert (await second.engine.handle("w-1").history())[:-1] == before
    async with Environment(store=store, clock=clock, registry=fits) as third:
        result = await third.finish(third.engine.handle("w-1").result())

    assert found.status is Status.DIVERGED
    assert "entry 2 of the history has 'a'" in str(found.error)
    assert done == []
    assert result == "now"


async def test_a_divergence_in_the_tick_of_a_new_entry_keeps_the_entry_and_none_of_its_commands():
    async def before(ctx: Context) -> None:
        await asyncio.gather(ctx.activity(a), two(ctx))

    async def two(ctx: Context) -> None:
        await ctx.activity(b)
        await ctx.activity(b)

    async def after(ctx: Context) -> None:
        async def shorter() -> None:
            await ctx.activity(b)

        await asyncio.gather(ctx.activity(a), shorter())
        await ctx.activity(a, 1)

    log = open_part(await recorded(before))
    scheduled = [entry for entry in log if isinstance(entry, events.Command)]
    answered = events.ActivityCompleted(seq=5, at=log[0].at, ref=scheduled[2].seq)
    early = [*log[:4], answered, _again(scheduled[3], 6)]
    workflow, own = version(after)

    world = Simulation(workflow, log=early, registry=own)
    whole = await world.run()

    assert world.status is Status.DIVERGED
    assert whole[:6] == early
    assert [entry.type for entry in whole[6:]] == ["workflow_diverged"]


def _again(command: events.Command, seq: int) -> events.Command:
    import msgspec

    return msgspec.structs.replace(command, seq=seq)


async def test_a_run_terminated_before_its_start_fits_its_code():
    async def sleeper(ctx: Context) -> None:
        @ctx.on_query("stage")
        def stage() -> str:
            return "asleep"

        await ctx.sleep(10)

    code = Registry().workflow(sleeper)
    started = start_event(code, ())
    log = [started, events.WorkflowTerminated(seq=2, at=started.at, reason="no longer wanted")]

    assert verify(code, log).fits
    assert bytes(answer_query(code, log, "stage", Raw(b"[]"), Settings())[0]) == b'"asleep"'


async def test_a_run_that_fails_because_it_diverged_records_where_and_what():
    def define(name: str) -> Any:
        async def program(ctx: Context) -> None:
            await ctx.activity(name)

        return Registry().workflow(name="w", on_divergence="fail")(program)

    before = Simulation(define("a"))
    await before.begin()
    before.close()
    failing = Simulation(define("b"), log=before.log)
    [failed] = [entry for entry in await failing.run() if isinstance(entry, events.WorkflowFailed)]

    failure = failed.failure
    fields = {name: msgspec.json.decode(value) for name, value in failure.fields.items()}
    line = fields["source"].rpartition(":")[2]
    assert fields == {
        "error": "HistoryDiverged",
        "location": "{1}",
        "command": "Task(0)",
        "field": "name",
        "code_value": "b",
        "history_value": "a",
        "event_seq": 2,
        "source": f"{__file__}:{line}",
    }
    assert f'File "{__file__}", line {line}' in failure.traceback
    rebuilt = rebuild(failure)
    assert isinstance(rebuilt, RemoteError)
    assert rebuilt.fields == fields
