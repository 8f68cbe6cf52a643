"""Code that was edited under a running history: told apart at the entry where it differs, and nothing gets lost."""

import asyncio
from datetime import UTC, datetime

import pytest
from msgspec import Raw

from resurgam import Context, Engine, Registry
from resurgam.core import event as events
from resurgam.core.location import Location
from resurgam.core.outcome import Entry
from resurgam.core.state import Status
from resurgam.runtime.execution.execution import Execution
from resurgam.store.memory.store import MemoryStore
from resurgam.testing import Environment, ManualClock, Simulation, replay
from resurgam.testing.simulation import START, start_event

GO = events.SignalReceived(name="go", id="1", value=Raw(b'"value"'))
activities = Registry()


@activities.activity
async def echo(x: int) -> int:
    return x


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Divergences are logged; they are expected here."""
    caplog.set_level("CRITICAL", logger="resurgam")


class Ending:
    """The chooser that ends the activity with the highest number first, then sends messages."""

    def choice(self, seq):
        at_work = [possible for possible in seq if possible.kind == "activity"]
        return at_work[-1] if at_work else seq[0]


class Telling:
    """The chooser that sends messages before anything else."""

    def choice(self, seq):
        return next((possible for possible in seq if possible.kind == "message"), seq[0])


# Races.


def race_of_futures(size):
    async def racing(ctx: Context) -> int:
        competitors = [ctx.activity("echo", i) for i in range(3)]
        _, value = await ctx.race(*competitors[:size])
        await ctx.listen("go")
        return value

    return Registry().workflow(racing)


def race_of_strands(size):
    async def racing(ctx: Context) -> int:
        async def strand(i: int) -> int:
            return await ctx.activity("echo", i)

        _, value = await ctx.race(*(strand(i) for i in range(size)))
        await ctx.listen("go")
        return value

    return Registry().workflow(racing)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("make", [race_of_futures, race_of_strands])
async def test_a_race_edited_to_fewer_competitors_than_its_winner_diverges(make, size):
    """The recorded winner is not among the competitors any more: a divergence, not an IndexError."""
    history = await Simulation(make(3), registry=activities, chooser=Ending(), messages=[GO]).run()
    decided = next(entry for entry in history if isinstance(entry, events.RaceDecided))
    assert decided.winner == 2

    report = await replay(make(size), history)

    assert report.diverged is not None
    assert not report.finished


async def test_a_race_whose_winner_was_taken_out_says_so():
    """The diagnosis names the race, the entry and the winner."""
    history = await Simulation(race_of_futures(3), registry=activities, chooser=Ending(), messages=[GO]).run()

    report = await replay(race_of_futures(2), history)

    assert str(report.diverged).startswith(
        "Race(0) at {4}: the code has winner 'none such, or not there yet', entry 7 of the history has 'competitor 2'"
    )


async def test_a_race_that_is_unchanged_replays():
    """The guard against removed competitors does not refuse those that are there."""
    history = await Simulation(race_of_strands(3), registry=activities, chooser=Ending(), messages=[GO]).run()

    report = await replay(race_of_strands(3), history)

    assert report.diverged is None
    assert report.result == 2


# Listening and clean-up.


def listening(name):
    async def listens(ctx: Context) -> list[str]:
        value = await ctx.listen(name)
        await ctx.sleep(1)
        return [name, value]

    return Registry().workflow(listens)


async def test_a_listen_that_was_renamed_diverges():
    """A value sent as one signal is never handed to code that listens for another."""
    history = await Simulation(listening("go"), messages=[GO]).run()

    report = await replay(listening("reject"), history)
    same = await replay(listening("go"), history)

    assert report.result is None
    assert "the code has signal 'reject', entry 4 of the history has 'go'" in str(report.diverged)
    assert same.result == ["go", "value"]


def cleaning(*, cleans):
    async def cleans_up(ctx: Context) -> None:
        try:
            await ctx.sleep(100)
        finally:
            if cleans:
                await ctx.activity("echo", 1)
                await ctx.activity("echo", 2)

    return Registry().workflow(cleans_up)


@pytest.mark.parametrize("length", [5, 6, 7, 8])
async def test_clean_up_that_was_removed_while_recorded_diverges(length):
    """A run that was cleaning up under cancellation is not taken for cancelled by code that no longer cleans up."""
    history = await Simulation(
        cleaning(cleans=True), registry=activities, chooser=Telling(), messages=[events.CancelRequested()]
    ).run()
    assert [entry.type for entry in history] == [
        "workflow_started",
        "timer_started",
        "cancel_requested",
        "timer_cancelled",
        "activity_scheduled",
        "activity_completed",
        "activity_scheduled",
        "activity_completed",
        "workflow_cancelled",
        "workflow_deactivated",
    ]

    report = await replay(cleaning(cleans=False), history[:length])

    assert "the code has end 'CancelledError', entry 5 of the history has 'activity_scheduled" in str(report.diverged)
    assert not report.finished


# Parking.


async def test_parking_keeps_the_answers_of_operations_that_are_held_in_memory():
    """Two operations have run when the first answer diverges; the second is written too, or it would run again."""

    async def parks(ctx: Context) -> None:
        async def first() -> None:
            await ctx.run(lambda: 1, name="x")

        async def second() -> None:
            await ctx.run(lambda: 2, name="y")
            await ctx.listen("q")

        await asyncio.gather(first(), second())

    workflow = Registry().workflow(parks)
    log = [start_event(workflow, ())]
    begun = Execution(workflow, log)
    log += begun.advance([], START).events
    begun.close()
    log.append(timer_in_strand_one(len(log) + 1))
    execution = Execution(workflow, log)
    execution.advance([], START)
    answers = [
        Entry(None, events.OperationCompleted(ref=operation.ref, at=START, result=Raw(b"1")))
        for operation in execution.take_operations()
    ]

    outcome = execution.advance(answers, START)

    assert len(answers) == 2
    assert outcome.status is Status.DIVERGED
    assert [entry.type for entry in outcome.events] == [
        "operation_completed",
        "operation_completed",
        "workflow_diverged",
    ]
    assert [entry.seq for entry in outcome.events] == [7, 8, 9]


async def test_parking_does_not_dispatch_an_activity_that_was_called_off_in_an_earlier_tick():
    """What was asked for and called off before the tick that diverged is written, but not put on a queue."""

    async def parks(ctx: Context) -> None:
        async def first() -> None:
            bool(await ctx.listen("q"))  # looked at, so no rehearsal can tell that this is where it diverges

        async def second() -> None:
            await ctx.listen("p")
            ctx.activity("echo", 1).cancel()
            await ctx.listen("never")

        await asyncio.gather(first(), second())

    workflow = Registry().workflow(parks)
    log = [start_event(workflow, ())]
    begun = Execution(workflow, log)
    log += begun.advance([], START).events
    begun.close()
    log.append(timer_in_strand_one(len(log) + 1))
    signals = [Entry(n, events.SignalReceived(name=name, id=name, at=START)) for n, name in enumerate("pq", 1)]

    outcome = Execution(workflow, log).advance(signals, START)

    assert outcome.status is Status.DIVERGED
    assert [entry.type for entry in outcome.events] == [
        "signal_received",
        "signals_consumed",
        "activity_scheduled",
        "activity_cancelled",
        "listen_started",
        "signal_received",
        "signals_consumed",
        "workflow_diverged",
    ]
    assert outcome.activities == ()


def timer_in_strand_one(seq):
    """Return a timer that another build has started where this one ends."""
    return events.TimerStarted(
        seq=seq, at=START, location=Location.parse("{1, 2}"), command="Timer(0)@{1}", deadline=10**15
    )


def build(*, good):
    """Return a registry with a workflow that listens, and is served by the same code only if both are *good*."""
    registry = Registry()

    @registry.activity
    async def a() -> int:
        return 1

    @registry.activity
    async def b() -> int:
        return 1

    @registry.workflow
    async def waits(ctx: Context) -> str:
        await ctx.activity(a if good else b)
        await ctx.listen("go")
        return "ok"

    return registry


async def test_a_repaired_worker_of_the_same_name_is_offered_the_parked_run_again():
    """A name says which machine it is, not which build: each start is a worker of its own."""
    clock = ManualClock()
    store = MemoryStore(clock)
    async with Environment(store=store, clock=clock, registry=build(good=True), name="worker-1") as env:
        await env.start("waits", id="x")
    async with Environment(store=store, clock=clock, registry=build(good=False), name="worker-1") as env:
        await env.engine.handle("x").signal("go")
        await env.settle()
        parked = await env.engine.handle("x").describe()
    async with Environment(store=store, clock=clock, registry=build(good=True), name="worker-1") as env:
        result = await env.finish(env.engine.handle("x").result())

    assert parked.status == "diverged"
    assert result == "ok"


async def test_a_worker_that_does_not_know_a_workflow_writes_nothing_into_its_history():
    """In a mixed fleet the run is taken by the worker that knows it, and its history shows nothing of the other."""
    clock = ManualClock()
    store = MemoryStore(clock)
    ignorant_of_it = Registry()

    @ignorant_of_it.activity
    async def a() -> int:
        return 1

    async with Engine(store, clock=clock, registry=ignorant_of_it, name="ignorant", grace=0) as ignorant:
        async with Engine(store, clock=clock, worker=False, registry=build(good=True)) as client:
            handle = await client.start("waits", id="x")
        for _ in range(30):
            await asyncio.sleep(0)
        alone = await handle.history()
        told = (await ignorant.handle("x").describe()).error
        async with Environment(store=store, clock=clock, registry=build(good=True), name="knowing") as knowing:
            await knowing.settle()
            await handle.signal("go")
            result = await knowing.finish(handle.result())
        history = await handle.history()

    assert [entry.type for entry in alone] == ["workflow_started"]
    assert "workflow 'waits' is not registered here" in str(told)
    assert result == "ok"
    assert [entry.type for entry in history] == [
        "workflow_started",
        "activity_scheduled",
        "activity_completed",
        "listen_started",
        "signal_received",
        "signals_consumed",
        "workflow_completed",
        "workflow_deactivated",
    ]


# Work that is given up, and how it is shown.


async def test_an_instance_that_always_fails_is_put_aside_with_its_last_error(monkeypatch):
    """After twenty deliveries it is dead, says of what, and nobody claims it any more."""
    clock = ManualClock()
    store = MemoryStore(clock)

    def fail(*_, **__):
        raise IndexError("boom")

    monkeypatch.setattr(Execution, "advance", fail)
    async with Environment(store=store, clock=clock, registry=build(good=True)) as env:
        handle = await env.start("waits", id="x")
        description = await handle.describe()
        progress = env.engine.progress
        await env.advance(3600)

        assert env.engine.progress == progress
    assert description.error == "handed out 20 times without a commit; the last error: IndexError('boom')"
    assert (await store.inspector.stats()).dead_instances == 1


class CountingStore(MemoryStore):
    """A store that counts how often work is asked for."""

    claims = 0

    async def claim(self, *args):
        """Claim, and count it."""
        self.claims += 1
        return await super().claim(*args)


async def test_a_parked_instance_that_then_always_fails_is_not_claimed_for_ever(monkeypatch):
    """Dead and parked at once, it is dead: a worker with nothing else to do rests."""
    clock = ManualClock()
    store = CountingStore(clock)
    async with Environment(store=store, clock=clock, registry=build(good=True)) as env:
        await env.start("waits", id="x")
    async with Environment(store=store, clock=clock, registry=build(good=False)) as env:
        await env.engine.handle("x").signal("go")
        await env.settle()

    def fail(*_, **__):
        raise IndexError("boom")

    monkeypatch.setattr(Execution, "advance", fail)
    async with Engine(store, clock=clock, registry=build(good=True), grace=0) as engine:
        for _ in range(500):
            await asyncio.sleep(0)
        error = (await engine.handle("x").describe()).error
        before = store.claims
        for _ in range(100):
            await asyncio.sleep(0)
        after = store.claims

    assert error == "handed out 20 times without a commit; the last error: IndexError('boom')"
    assert after == before


async def test_an_activity_that_nobody_answers_is_shown_in_the_description():
    """After twenty deliveries it is dead, and the workflow that waits for it says so."""
    clock = ManualClock()
    store = MemoryStore(clock)
    async with Environment(store=store, clock=clock, registry=gpu_registry()) as env:
        handle = await env.start("asks", id="x")
        for _ in range(21):
            await store.claim_activities("dies", ["gpu"], 5)
            clock.move_to(clock.now() + 20_000)
        description = await handle.describe()

    assert description.status == "running"
    assert description.waiting_for == ("activity 'render' on queue 'gpu' at {1}",)
    assert description.error == "activity 'render' (entry 2) was handed out 20 times without an answer"
    assert (await store.inspector.stats()).dead_activities == 1


def gpu_registry():
    registry = Registry()

    @registry.activity(queue="gpu")
    async def render() -> None: ...

    @registry.workflow
    async def asks(ctx: Context) -> None:
        await ctx.activity(render)

    return registry


# Text and time.


@pytest.mark.parametrize("text", ["a\u2028b", "a\u2029b", "a\x85b", "a\x0cb", "a\x1cb", "a\nb", "a\rb", "plain"])
async def test_a_history_replays_from_its_lines_whatever_its_text_holds(text):
    """Only a newline ends a line: what else Python's splitlines takes for one may stand in a string."""
    registry = Registry()

    @registry.workflow
    async def says(ctx: Context, said: str) -> str:
        return await ctx.run(lambda: said, name="say")

    async with Environment(registry=registry) as env:
        handle = await env.start(says, text)
        await env.finish(handle.result())
        history = await handle.history()

    report = await replay(says, "\n".join(entry.to_json() for entry in history))

    assert report.diverged is None
    assert report.result == text


async def test_a_deadline_at_the_end_of_the_calendar_can_be_described():
    """It is shown as the last day there is, also where a result does not come in time."""
    registry = Registry()

    @registry.workflow
    async def waits(ctx: Context) -> None:
        await ctx.sleep_until(datetime.max.replace(tzinfo=UTC))

    async with Environment(registry=registry) as env:
        handle = await env.start(waits)
        description = await handle.describe()
        with pytest.raises(TimeoutError, match="waits for timer until 9999-12-31T00:00:00"):
            await handle.result(timeout=0)

    assert description.waiting_for == ("timer until 9999-12-31T00:00:00+00:00 at {1}",)


async def test_the_longest_sleep_can_be_described():
    """Three thousand years are a length of time, and their end has a date."""
    registry = Registry()

    @registry.workflow
    async def waits(ctx: Context) -> None:
        last = datetime.max.replace(tzinfo=UTC)
        await asyncio.gather(ctx.sleep(9.9e10), ctx.sleep_until(last))

    async with Environment(registry=registry) as env:
        handle = await env.start(waits)
        description = await handle.describe()

    assert description.waiting_for == (
        "timer until 5161-01-21T06:13:20+00:00 at {1}",
        "timer until 9999-12-31T00:00:00+00:00 at {2}",
    )
