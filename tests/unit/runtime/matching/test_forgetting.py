"""Loops that forget, under code that changes and beside other strands: what was found by reading, each as a test."""

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
    """A run without a store: what an advance says is forgotten is taken out of the log."""

    def __init__(self, code: Workflow[..., Any]) -> None:
        self.log: list[events.Event] = [start_event(code, ())]
        self.asked: list[str] = []
        self.execution = Execution(code, list(self.log))
        self._clock, self._signals = START, 0
        self.advance()

    def advance(self, *inbox: events.Event) -> Outcome:
        """Tell the run of these entries and keep what came of it."""
        self._clock += 1
        outcome = self.execution.advance([Entry(None, entry) for entry in inbox], self._clock)
        gone = {forgotten.seq for forgotten in outcome.forgotten}
        self.log = [entry for entry in (*self.log, *outcome.events) if entry.seq not in gone]
        self.asked += [request.name for request in outcome.activities]
        return outcome

    def load(self, code: Workflow[..., Any] | None = None) -> Outcome:
        """Lose the coroutine and read the log again, perhaps with other code."""
        self.execution.close()
        self.execution = Execution(code or self.execution.workflow, list(self.log))
        return self.advance()

    def send(self, name: str) -> Outcome:
        """Send a signal."""
        self._signals += 1
        return self.advance(events.SignalReceived(name=name, id=str(self._signals), at=self._clock, value=Raw(b"1")))

    def at_work(self) -> list[events.Event]:
        """Return the activities that are not answered."""
        answered = {entry.ref for entry in self.log}
        return [e for e in self.log if isinstance(e, events.ActivityScheduled) and e.seq not in answered]

    def answer(self, ref: int | None = None) -> Outcome:
        """Answer an activity, the oldest that is at work."""
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


def test_an_activity_at_work_below_a_removed_branch_is_not_forgotten():
    """Forgetting it made its answer a KeyError in a live run, and one that no command was known to in a loaded one."""
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


def test_an_activity_at_work_of_an_item_that_a_map_has_lost_is_not_forgotten():
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


def test_a_loop_goes_on_forgetting_though_a_removed_timer_never_fires():
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
def test_what_is_set_before_a_loop_by_an_edit_outlives_its_checkpoint(signals):
    """The state of the checkpoint was put in its place, and what the edit had set was gone, in the next one for good."""
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
    # As the log has it, entry by entry: that was written after the checkpoint, though it stands before the loop.
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


def test_a_strand_that_goes_on_for_ever_does_not_make_each_tick_a_long_rehearsal(monkeypatch):
    """Each answer to it was followed by a rehearsal of 10,000 steps, more than a second; the step under way starved."""
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
def test_a_body_that_calls_something_off_last_is_forgotten(behind):
    """What was called off ends a moment later; asked before that, no iteration was ever quiet."""
    world = World(leaving(behind=behind))
    for _ in range(11):
        world.send("go")
    assert len(world.log) < 25
    assert not world.execution.recorder.pending.races
    hot = set(world.execution.recorder.log.state.open)
    world.load()
    assert set(world.execution.recorder.log.state.open) == hot


def test_what_a_body_leaves_to_a_callback_is_not_forgotten_while_it_is_at_work():
    world = World(leaving(behind="callback"))
    for _ in range(3):
        world.send("go")
    assert len(world.at_work()) == len(world.asked) == 3
    assert world.load().status is Status.RUNNING
    for _ in range(3):
        assert [entry.type for entry in world.answer().events] == ["activity_completed"]


def test_two_strands_may_be_inside_the_same_version_at_once():
    """The tokens of both were kept on one stack, and the strand that left first took the other's."""

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
    """Where the history held nothing behind the checkpoint, it failed every open run of a deployment for good."""
    world = World(typed(int))
    world.answer()
    assert world.load(typed(bytes)).status is Status.DIVERGED
    assert world.load(typed(int)).status is Status.RUNNING


def test_an_answer_that_is_kept_when_a_run_fails_for_divergence_is_waited_for_no_longer():
    """Otherwise the history would never be complete."""

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
