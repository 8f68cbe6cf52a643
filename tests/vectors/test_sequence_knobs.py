"""What a workflow may say about how its code is held against its history: one section for each option."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from resurgam import Context, Registry, errors
from resurgam.core import event as events
from resurgam.core.state import Status
from resurgam.errors import DefinitionError, DeterminismViolation, HistoryDiverged
from resurgam.store.memory.store import MemoryStore
from resurgam.testing import Environment, ManualClock, Simulation, replay
from vectors.event_notation import history, registry_of, started, told, workflow

SEQUENCE = {"matching": "sequence"}
BOTH = pytest.mark.parametrize("matching", ["sequence", "location"])


def warnings(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


async def go_on(code: Any, text: str, **options: Any) -> tuple[Simulation, list[events.Event]]:
    """Let code go on from a history until its end; return the world and what was added."""
    log = history(text, started(options.get("matching", "sequence")))
    world = Simulation(workflow(code, **options), log=log, registry=registry_of())
    return world, (await world.run())[len(log) :]


@pytest.mark.parametrize("option", ["matching", "on_divergence", "late_new", "orphans", "input_check"])
def test_a_value_that_an_option_does_not_have_is_refused(option):
    with pytest.raises(DefinitionError, match=f"{option} must be .*, got 'perhaps'"):
        workflow(a_then_b, **{option: "perhaps"})


# late_new.


async def a_then_b(ctx: Context) -> list[str]:
    return [await ctx.activity("A"), await ctx.activity("B")]


async def with_x_between(ctx: Context) -> list[str]:
    first = await ctx.activity("A")
    await ctx.sleep(1)
    return [first, await ctx.activity("B")]


LATE = 'task A | done 0 "a" | task B'


async def test_late_new_is_allowed_and_not_spoken_of(caplog):
    world, added = await go_on(with_x_between, LATE)

    assert world.status is Status.COMPLETED
    assert told(entry for entry in added if isinstance(entry, events.Command)) == ["Timer(0)"]
    assert warnings(caplog) == []


async def test_late_new_is_warned_of_once(caplog):
    """Neither the rehearsal that follows nor a replay of what was written then says it again."""
    log = history(LATE)
    world = Simulation(workflow(with_x_between, late_new="warn"), log=log, registry=registry_of())
    whole = await world.run()
    await replay(workflow(with_x_between, late_new="warn"), whole)

    assert world.status is Status.COMPLETED
    assert warnings(caplog) == ["late_new: Timer order mismatch at Timer(0): expected 'timer_started', got 'B'"]


async def test_late_new_as_an_error_starts_nothing(caplog):
    world, added = await go_on(with_x_between, LATE, late_new="error")

    assert [entry.type for entry in added] == ["workflow_failed", "activity_cancelled", "workflow_deactivated"]
    assert world.performed == []


@pytest.mark.parametrize("rule", ["allow", "warn", "error"])
async def test_what_comes_after_all_that_is_recorded_is_not_late(rule, caplog):
    async def longer(ctx: Context) -> None:
        await ctx.activity("A")
        await ctx.sleep(1)
        await ctx.activity("B")

    world, _ = await go_on(longer, 'task A | done 0 "a"', late_new=rule)

    assert world.status is Status.COMPLETED
    assert warnings(caplog) == []


async def test_late_new_looks_at_each_strand_by_itself(caplog):
    """What is left in one strand makes nothing late in another."""

    async def code(ctx: Context) -> None:
        async def one() -> None:
            await ctx.activity("A")

        async def two() -> None:
            await ctx.activity("B")
            await ctx.sleep(1)

        await asyncio.gather(one(), two())

    text = 'branch | branch | task A @{1} | task A @{1} | task B @{2} | done 2 "a" | done 4 "b"'
    world, _ = await go_on(code, text, late_new="error")

    assert world.status is Status.COMPLETED


async def test_by_location_an_inserted_step_is_not_late():
    async def inserted(ctx: Context) -> list[str]:
        first = await ctx.activity("A")
        await ctx.v(2).sleep(1)
        return [first, await ctx.activity("B")]

    world, _ = await go_on(inserted, LATE, late_new="error", matching="location")

    assert world.status is Status.COMPLETED


# orphans.


async def only_a(ctx: Context) -> str:
    return await ctx.activity("A")


ORPHAN = 'task A | done 0 "a" | task B | timer 60 | set k 1'
SAID = "workflow 'w' (simulated): {} is recorded, but the code does not request it"
EACH = ["Task(1) 'B' at {2}", "Timer(0) None at {3}", "State(0) 'k' at {4}"]


async def test_orphans_are_allowed_and_not_spoken_of(caplog):
    world, added = await go_on(only_a, ORPHAN)

    assert world.status is Status.COMPLETED
    assert next(entry.type for entry in added) == "workflow_completed"
    assert warnings(caplog) == []


async def test_orphans_are_warned_of_once_each(caplog):
    world, _ = await go_on(only_a, ORPHAN, orphans="warn")

    assert world.status is Status.COMPLETED
    assert warnings(caplog) == [SAID.format(each) for each in EACH]


async def test_orphans_are_cancelled(caplog):
    """An activity that is still to be run is; what is over, or no activity, needs nothing."""
    _, added = await go_on(only_a, ORPHAN + ' | task P | done 4 "p"', orphans="cancel")

    assert [(entry.type, entry.ref) for entry in added] == [
        ("activity_cancelled", 4),
        ("workflow_completed", None),
        ("workflow_deactivated", None),
    ]
    assert len(warnings(caplog)) == 4


async def test_an_orphan_is_an_error_that_names_it(caplog):
    world, added = await go_on(only_a, ORPHAN, orphans="error")

    assert world.status is Status.FAILED
    failure = added[0].failure
    assert failure.type == "DETERMINISM_VIOLATION"
    assert failure.message == "Task(1) 'B' at {2} (entry 4) is recorded, but the code does not request it"
    assert bytes(failure.fields["error"]) == b'"DeterminismViolation"'


async def test_an_orphan_is_an_error_on_replay_too():
    found = (await replay(workflow(only_a, orphans="error"), history(ORPHAN))).diverged

    assert isinstance(found, DeterminismViolation)
    assert (found.command, found.field, found.history_value, found.event_seq) == ("Task(1)", "orphan", "B", 4)
    assert str(found.location) == "{2}"


async def test_an_orphan_is_found_before_anything_new_is_begun(caplog):
    """The code ends without it whatever the new step gives, and the rehearsal says so."""

    async def code(ctx: Context) -> None:
        await ctx.activity("A")
        await ctx.sleep(1)

    world, added = await go_on(code, 'task A | done 0 "a" | task B', orphans="error")

    assert added[0].type == "workflow_failed"
    assert world.performed == []


async def test_an_orphan_is_found_while_the_code_still_waits():
    """It will end without it in any case, and a check beforehand says so."""

    async def code(ctx: Context) -> None:
        await ctx.activity("A")
        await ctx.listen("go")

    text = 'task A | done 0 "a" | task B | done 1 "b" | listen go'
    found = (await replay(workflow(code, orphans="error"), history(text))).diverged
    assert isinstance(found, DeterminismViolation)
    assert (found.command, found.field) == ("Task(1)", "orphan")
    assert (await replay(workflow(code), history(text))).diverged is None


async def test_no_orphan_no_error():
    world, _ = await go_on(a_then_b, 'task A | done 0 "a" | task B', orphans="error")

    assert world.status is Status.COMPLETED


async def test_a_failure_is_not_taken_for_an_orphan():
    async def fails(ctx: Context) -> None:
        await ctx.activity("A")
        raise ValueError("as it was meant to be")

    world, added = await go_on(fails, "task A | timer 5", orphans="error")

    assert world.status is Status.FAILED
    assert added[1].failure.type == "builtins.ValueError"


async def test_an_orphan_that_parks_the_run_has_a_remedy(caplog):
    async def mended(ctx: Context) -> str:
        value = await ctx.activity("A")
        await ctx.removed.activity("B")
        return value

    text = 'task A | done 0 "a" | task B'
    world, added = await go_on(only_a, text, orphans="error", on_divergence="block")
    again, _ = await go_on(mended, text, orphans="error", on_divergence="block")

    assert world.status is Status.DIVERGED
    assert added[-1].diagnosis.endswith("the remedy: put back await ctx.removed.activity('B') at the end")
    assert again.status is Status.COMPLETED


async def test_an_orphan_is_withdrawn_from_its_queue():
    """orphans="cancel" on an engine: no worker gets the activity any more."""
    clock = ManualClock()
    store = MemoryStore(clock)

    def build(*, both: bool) -> Registry:
        registry = registry_of("A")
        idle = Registry().activity(name="idle", queue="far")(only_name)

        @registry.workflow(matching="sequence", orphans="cancel")
        async def w(ctx: Context) -> str:
            if both:
                ctx.activity(idle)
            await ctx.listen("go")
            return "done"

        return registry

    async with Environment(store=store, clock=clock, registry=build(both=True)) as env:
        await env.start("w", id="x")
    async with Environment(store=store, clock=clock, registry=build(both=False)) as env:
        await env.engine.handle("x").signal("go")
        assert await env.finish(env.engine.handle("x").result()) == "done"
        kinds = [entry.type for entry in await env.engine.handle("x").history()]
    assert await store.claim_activities("late", ["far"], 5) == []
    assert kinds[-3:] == ["activity_cancelled", "workflow_completed", "workflow_deactivated"]


async def only_name() -> None: ...


# input_check.


def asks(value: str) -> Any:
    async def code(ctx: Context) -> None:
        await ctx.activity("A", value)

    return code


def sleeps(seconds: int) -> Any:
    async def code(ctx: Context) -> None:
        await ctx.sleep(seconds)

    return code


def sleeps_until(second: int) -> Any:
    async def code(ctx: Context) -> None:
        await ctx.sleep_until(datetime.fromtimestamp(1_700_000_000 + second, UTC))

    return code


def listens(*names: str) -> Any:
    async def code(ctx: Context) -> None:
        await ctx.listen(*names)

    return code


def branches(name: str | None) -> Any:
    async def code(ctx: Context) -> None:
        async def part(ctx: Context) -> None:
            await ctx.activity("A")

        await ctx.branch(part, name=name)

    return code


def sets(value: int) -> Any:
    async def code(ctx: Context) -> None:
        ctx.set("k", value)
        await ctx.activity("A")

    return code


CHANGES = {
    "a long argument": (asks("a" * 300), asks("b" * 300), "Task", "input", f'["{"b" * 198}...'),
    "an argument": (asks("a"), asks("b"), "Task", "input", '["b"]'),
    "a duration": (sleeps(5), sleeps(6), "Timer", "duration", "6000 ms"),
    "a moment": (sleeps_until(60), sleeps_until(90), "Timer", "duration", "until 1700000090000 ms"),
    "the names of a listener": (listens("go"), listens("go", "stop"), "Listen", "name", "go, stop"),
    "the name of a branch": (branches(None), branches("part"), "Branch", "name", "part"),
    "a value": (sets(1), sets(2), "State", "input", "2"),
}
changes = pytest.mark.parametrize(("old", "new", "kind", "field", "value"), CHANGES.values(), ids=CHANGES)


async def recorded(code: Any, matching: str) -> list[events.Event]:
    world = Simulation(
        workflow(code, matching=matching),
        registry=registry_of(),
        messages=[events.SignalReceived(name="go", id="1")],
    )
    return await world.run()


@BOTH
@changes
async def test_inputs_are_compared_strictly(old, new, kind, field, value, matching):
    log = await recorded(old, matching)
    found = (await replay(workflow(new, matching=matching, input_check="strict"), log)).diverged
    same = await replay(workflow(old, matching=matching, input_check="strict"), log)

    assert type(found) is (DeterminismViolation if matching == "sequence" else HistoryDiverged)
    assert (found.command, found.field, found.event_seq) == (f"{kind}(0)", field, 2)
    assert found.code_value == value
    assert (same.diverged, same.finished) == (None, True)


@BOTH
@changes
async def test_inputs_that_differ_are_warned_of(old, new, kind, field, value, matching, caplog):
    """Also of a step that is done: there a changed input is a result that goes to the wrong call."""
    log = await recorded(old, matching)
    report = await replay(workflow(new, matching=matching, input_check="warn"), log)

    assert report.diverged is None
    assert len(warnings(caplog)) == 1
    assert warnings(caplog)[0].startswith("input_check: ")
    assert f"{kind}(0)" in warnings(caplog)[0]


@BOTH
@changes
async def test_inputs_are_not_compared_unless_requested(old, new, kind, field, value, matching, caplog):
    report = await replay(workflow(new, matching=matching), await recorded(old, matching))

    assert (report.diverged, report.finished) == (None, True)
    assert warnings(caplog) == []


async def test_a_warning_is_not_repeated_by_a_rehearsal(caplog):
    async def code(ctx: Context) -> None:
        await ctx.activity("A", "other")
        await ctx.sleep(1)
        await ctx.activity("B")

    world, _ = await go_on(code, 'task A "a" | done 0 "x" | task B | done 1 "y"', input_check="warn")

    assert world.status is Status.COMPLETED
    assert len(warnings(caplog)) == 1


# on_divergence.


@pytest.mark.parametrize(
    ("matching", "rule", "status"),
    [
        ("sequence", None, Status.FAILED),
        ("sequence", "fail", Status.FAILED),
        ("sequence", "block", Status.DIVERGED),
        ("location", None, Status.DIVERGED),
        ("location", "fail", Status.FAILED),
        ("location", "block", Status.DIVERGED),
    ],
)
async def test_a_divergence_fails_the_run_or_parks_it(matching, rule, status, caplog):
    world, added = await go_on(a_then_b, "task X", matching=matching, on_divergence=rule)

    assert world.status is status
    if status is Status.FAILED:
        assert added[0].failure.type == "DETERMINISM_VIOLATION"
    else:
        assert [entry.type for entry in added] == ["workflow_diverged"]
        assert added[0].diagnosis.endswith("put back await ctx.removed.activity('X') before " + _line(added[0]))


def _line(entry: events.Event) -> str:
    assert isinstance(entry, events.WorkflowDiverged)
    return entry.diagnosis.rpartition(" before ")[2]


async def test_the_rule_that_was_recorded_counts_not_the_one_of_today(caplog):
    """A run that began by location goes on by location, and is parked as such, whatever the code says by now."""
    log = history("task X", started("location"))
    world = Simulation(workflow(a_then_b, matching="sequence"), log=log, registry=registry_of())

    assert (await world.run())[-1].type == "workflow_diverged"
    assert world.status is Status.DIVERGED


async def test_a_waiting_caller_gets_the_error_of_a_failed_run():
    clock = ManualClock()
    store = MemoryStore(clock)
    for name, wrong in (("A", False), ("B", True)):
        registry = registry_of("A", "B")

        async def code(ctx: Context, name: str = name) -> None:
            await ctx.activity(name)
            await ctx.listen("go")

        workflow(code, registry)
        async with Environment(store=store, clock=clock, registry=registry) as env:
            handle = await env.engine.start("w", id="x", if_exists="attach")
            if wrong:
                await handle.signal("go")
            await env.settle()
            if wrong:
                with pytest.raises(errors.WorkflowFailed, match="DETERMINISM_VIOLATION: Task type mismatch"):
                    await handle.result(timeout=0)
