"""Forgetting loops under changed code and beside other branches."""

import asyncio
from typing import Any

import pytest
from msgspec import Raw

from resurgam import Break, Context, Continue, Registry
from resurgam.core import event as events
from resurgam.core.outcome import Entry, Outcome
from resurgam.core.state import Status
from resurgam.runtime.definitions.definition import Workflow
from resurgam.runtime.execution.execution import Execution
from resurgam.runtime.rehearsal.rehearsal import Rehearsal
from resurgam.testing.simulation import START, start_event

activities = Registry()


@activities.activity
async def echo(x: str) -> int:
    return len(x)


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Divergences are logged; they may be expected here."""
    caplog.set_level("CRITICAL", logger="resurgam")


class World:
    """A run without a store: forgotten entries of an outcome are removed from the log."""

    def __init__(self, code: Workflow[..., Any]) -> None:
        self.log: list[events.Event] = [start_event(code, ())]
        self.asked: list[str] = []
        self.execution = Execution(code, list(self.log))
        self._clock, self._signals = START, 0
        self.advance()

    def advance(self, *inbox: events.Event) -> Outcome:
        """Deliver these entries to the run and keep the outcome."""
        self._clock += 1
        outcome = self.execution.advance([Entry(None, entry) for entry in inbox], self._clock)
        gone = {forgotten.seq for forgotten in outcome.forgotten}
        self.log = [entry for entry in (*self.log, *outcome.events) if entry.seq not in gone]
        self.asked += [request.name for request in outcome.activities]
        return outcome

    def load(self, code: Workflow[..., Any] | None = None) -> Outcome:
        """Drop the coroutine and load the log again, perhaps with other code."""
        self.execution.close()
        self.execution = Execution(code or self.execution.workflow, list(self.log))
        return self.advance()

    def send(self, name: str) -> Outcome:
        """Send a signal."""
        self._signals += 1
        return self.advance(events.SignalReceived(name=name, id=str(self._signals), at=self._clock, value=Raw(b"1")))

    def at_work(self) -> list[events.Event]:
        """Return the unanswered activities."""
        answered = {entry.ref for entry in self.log}
        return [e for e in self.log if isinstance(e, events.ActivityScheduled) and e.seq not in answered]

    def answer(self, ref: int | None = None) -> Outcome:
        """Answer the oldest running activity."""
        ref = self.at_work()[0].seq if ref is None else ref
        return self.advance(events.ActivityCompleted(ref=ref, at=self._clock, result=Raw(b"1")))


def branching(*, removed: bool) -> Workflow[..., Any]:
    async def side(ctx: Context) -> None:
        await ctx.activity("slow")

    async def body(ctx: Context, done: int) -> Continue[int]:
        if removed:
            await ctx.removed.branch()
        else:
            ctx.branch(side)
        await ctx.listen("go")
        return Continue(done + 1)

    async def main(ctx: Context) -> None:
        await ctx.loop(body, 0, forget_every=2)

    return Registry().workflow(main)


def mapping(*items: str) -> Workflow[..., Any]:
    async def body(ctx: Context, done: int) -> Continue[int]:
        await ctx.map(echo, items if done == 0 else ())
        await ctx.listen("go")
        return Continue(done + 1)

    async def main(ctx: Context) -> None:
        await ctx.loop(body, 0, forget_every=2)

    return Registry().workflow(main)


def test_a_running_activity_below_a_removed_branch_is_not_forgotten():
    """Its answer must find its command, in a live run and in a loaded one."""
    world = World(branching(removed=False))
    [slow] = world.at_work()
    world.load(branching(removed=True))
    world.send("go")
    world.send("go")
    assert world.at_work() == [slow]
    assert [entry.type for entry in world.answer(slow.seq).events] == ["activity_completed"]
    assert world.load().status is Status.RUNNING
    world.send("go")
    assert [entry.type for entry in world.log][:3] == ["workflow_started", "loop_started", "loop_checkpointed"]


def test_a_running_activity_of_an_item_removed_from_a_map_is_not_forgotten():
    world = World(mapping("a", "b"))
    kept, lost = world.at_work()
    world.answer(kept.seq)
    world.load(mapping("a"))
    world.send("go")
    world.send("go")
    assert world.at_work() == [lost]
    assert [entry.type for entry in world.answer(lost.seq).events] == ["activity_completed"]
    world.send("go")
    assert [entry.type for entry in world.log][:3] == ["workflow_started", "loop_started", "loop_checkpointed"]


def sleeping(*, removed: bool) -> Workflow[..., Any]:
    async def body(ctx: Context, done: int) -> Continue[int]:
        if removed:
            await ctx.removed.sleep()
        else:
            await ctx.sleep(1000)
        await ctx.listen("go")
        return Continue(done + 1)

    async def main(ctx: Context) -> None:
        await ctx.loop(body, 0, forget_every=2)

    return Registry().workflow(main)


def test_a_removed_timer_that_never_fires_does_not_prevent_forgetting():
    world = World(sleeping(removed=False))
    world.load(sleeping(removed=True))
    for _ in range(10):
        world.send("go")
    assert len(world.log) < 8
    hot = set(world.execution.recorder.log.state.open)
    world.load()
    assert set(world.execution.recorder.log.state.open) == hot


def moded(*, inserted: bool, ends: bool = False) -> Workflow[..., Any]:
    async def body(ctx: Context, done: int) -> Continue[int] | Break[int]:
        await ctx.listen("go")
        ctx.set("count", done + 1)
        return Break(done) if ends and done == 2 else Continue(done + 1)

    async def main(ctx: Context) -> None:
        if inserted:
            ctx.v(2).set("mode", "a")
            ctx.v(2).clear("old")
        ctx.set("old", 1)
        await ctx.loop(body, 0, forget_every=2)
        await ctx.listen("go")

    return Registry().workflow(main)


@pytest.mark.parametrize("signals", [2, 3])
def test_state_set_before_a_loop_by_an_edit_survives_its_checkpoint(signals):
    """Restoring the state of the checkpoint keeps a value that the edit has set before the loop."""
    old, new = moded(inserted=False, ends=True), moded(inserted=True, ends=True)
    world = World(old)
    for _ in range(signals):
        world.send("go")
    assert world.load(new).status is Status.RUNNING
    states = []
    for step in (world.load, lambda: world.send("go"), world.load):
        step()
        recorder = world.execution.recorder
        states.append({key: bytes(value) for key, value in recorder.state.values.items()})
    # In the order of the log: the value was written after the checkpoint, though its location is before the loop.
    assert [state.get("mode") for state in states] == [b'"a"'] * 3
    assert states[-1]["count"] == b"3"


def polling(*, inserted: bool) -> Workflow[..., Any]:
    async def poll(ctx: Context) -> None:
        while True:
            await ctx.activity("poll")

    async def main(ctx: Context) -> None:
        ctx.branch(poll)
        if inserted:
            await ctx.v(2).listen("approve")
        await ctx.activity("x")
        await ctx.activity("y")

    return Registry().workflow(main)


def test_an_endless_branch_does_not_make_every_tick_rehearse_long(monkeypatch):
    """A rehearsal gives recorded open steps their turn, instead of following the endless branch for 10,000 steps."""
    rehearsed: list[int] = []
    run = Rehearsal.run

    def counted(self, order):
        found = run(self, order)
        rehearsed.append(len(self.recorder.log.new))
        return found

    monkeypatch.setattr(Rehearsal, "run", counted)
    world = World(polling(inserted=False))
    world.load(polling(inserted=True))
    for _ in range(5):
        world.load()
        assert world.answer(world.at_work()[-1].seq).status is Status.RUNNING
    assert len(rehearsed) <= 12
    assert max(rehearsed) < 200
    assert world.send("approve").status is Status.RUNNING


def leaving(*, behind: str) -> Workflow[..., Any]:
    async def beat(ctx: Context) -> None:
        while True:
            await ctx.sleep(60)

    async def body(ctx: Context, done: int) -> Continue[int]:
        beating = ctx.branch(beat)
        await ctx.listen("go")
        beating.cancel()
        if behind == "race":
            ctx.race(ctx.listen("a"), ctx.listen("b")).cancel()
        if behind == "callback":
            asyncio.get_running_loop().call_soon(lambda: ctx.activity("late"))
        return Continue(done + 1)

    async def main(ctx: Context) -> None:
        await ctx.loop(body, 0, forget_every=2)

    return Registry().workflow(main)


@pytest.mark.parametrize("behind", ["task", "race"])
def test_an_iteration_that_ends_with_a_cancellation_is_forgotten(behind):
    """A cancelled call ends a moment later; the loop waits for that before it decides on a checkpoint."""
    world = World(leaving(behind=behind))
    for _ in range(11):
        world.send("go")
    assert len(world.log) < 25
    assert not world.execution.recorder.pending.races
    hot = set(world.execution.recorder.log.state.open)
    world.load()
    assert set(world.execution.recorder.log.state.open) == hot


def test_a_call_left_to_a_callback_is_not_forgotten_while_it_is_open():
    world = World(leaving(behind="callback"))
    for _ in range(3):
        world.send("go")
    assert len(world.at_work()) == len(world.asked) == 3
    assert world.load().status is Status.RUNNING
    for _ in range(3):
        assert [entry.type for entry in world.answer().events] == ["activity_completed"]


def test_two_tasks_may_be_inside_the_same_version_block_at_once():
    """The task that leaves first restores its own version, not that of the other."""

    async def main(ctx: Context) -> None:
        second = ctx.v(2)

        async def step(name: str) -> None:
            with second:
                await ctx.activity(name)
            await ctx.activity(f"after {name}")

        await asyncio.gather(step("a"), step("b"))

    world = World(Registry().workflow(main))
    for _ in range(4):
        world.answer()
    scheduled = [entry for entry in world.log if isinstance(entry, events.ActivityScheduled)]
    assert [(e.name, e.version) for e in scheduled] == [("a", 2), ("b", 2), ("after a", 1), ("after b", 1)]
    assert world.log[-2].type == "workflow_completed"


def typed(kind: type) -> Workflow[..., Any]:
    async def body(ctx: Context, state: kind) -> Continue[kind]:  # type: ignore[valid-type]
        if state:
            await ctx.until(lambda: False)
        await ctx.activity("a")
        return Continue(kind(5))

    async def main(ctx: Context) -> None:
        await ctx.loop(body, kind(), forget_every=1)

    return Registry().workflow(main)


def test_the_state_of_a_checkpoint_that_no_longer_fits_parks_the_run():
    """Even if the history ends with the checkpoint, the run is parked and does not fail."""
    world = World(typed(int))
    world.answer()
    assert world.load(typed(bytes)).status is Status.DIVERGED
    assert world.load(typed(int)).status is Status.RUNNING


def test_a_run_that_fails_by_divergence_does_not_wait_for_an_answered_activity():
    """The activity was already answered, so no withdrawal is awaited and the history becomes complete."""

    async def main(ctx: Context) -> None:
        await asyncio.gather(ctx.activity(echo, "a"), ctx.activity("b"))

    world = World(Registry().workflow(on_divergence="fail")(main))
    first, second = world.at_work()
    outcome = world.advance(
        events.ActivityCompleted(ref=first.seq, at=START, result=Raw(b'"no number"')),
        events.ActivityCompleted(ref=second.seq, at=START, result=Raw(b"1")),
    )
    assert [entry.type for entry in outcome.events][1:] == [
        *("activity_completed", "workflow_failed", "workflow_deactivated")
    ]
    assert (outcome.status, outcome.deactivated, outcome.withdrawals) == (Status.FAILED, True, ())
