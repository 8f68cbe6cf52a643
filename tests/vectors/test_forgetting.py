"""A step put into the body of a loop that forgets: only what is not forgotten is gone through again.

There is no store here: what an advance says is forgotten is taken out of the log by the test itself.
"""

from typing import Any

import pytest
from msgspec import Raw

from resurgam import Break, Context, Continue, Registry
from resurgam.core import event as events
from resurgam.core.outcome import Entry
from resurgam.runtime.definitions.definition import Workflow
from resurgam.runtime.execution.execution import Execution
from resurgam.testing.simulation import START, start_event
from vectors.history_notation import told


def build(*, inserted: bool) -> Workflow[..., Any]:
    """Return a loop of 22 iterations of p and q, with a step between them once it is *inserted*."""

    async def body(ctx: Context, done: int) -> Continue[int] | Break[int]:
        await ctx.activity("p", done)
        if inserted:
            await ctx.v(2).activity("x", done)
        await ctx.activity("q", done)
        return Continue(done + 1) if done < 21 else Break(done)

    async def edited(ctx: Context) -> int:
        await ctx.activity("a", 0)
        return await ctx.loop(body, 0, forget_every=20)

    return Registry().workflow(edited)


def go_on(code: Workflow[..., Any], log: list[events.Event], until: str) -> tuple[list[events.Event], list[str]]:
    """Answer every activity until one stands at a place, which is left open; return the log and what was asked for."""
    execution, asked = Execution(code, log), []
    inbox: list[Entry] = []
    while True:
        outcome = execution.advance(inbox, START)
        assert outcome.diagnosis is None
        gone = {forgotten.seq for forgotten in outcome.forgotten}
        log = [entry for entry in (*log, *outcome.events) if entry.seq not in gone]
        asked += [told([entry]) for entry in outcome.events if isinstance(entry, events.ActivityScheduled)]
        answered = {entry.ref for entry in log}
        open_ones = [e for e in log if isinstance(e, events.ActivityScheduled) and e.seq not in answered]
        if not open_ones or told(open_ones[-1:]).startswith(until):
            execution.close()
            return log, asked
        inbox = [Entry(None, events.ActivityCompleted(ref=open_ones[0].seq, at=START, result=Raw(b"1")))]


@pytest.mark.parametrize("stop", ["2/21/1", "2/21/2"])
def test_only_the_iteration_under_way_gets_the_step(stop):
    old, new = build(inserted=False), build(inserted=True)
    log, _ = go_on(old, [start_event(old, ())], stop)
    assert told(log).startswith("1=a 2=~loop 2/21/1=p")

    log, asked = go_on(new, log, "none")

    there = "2/21/1.1=x@2" if stop == "2/21/2" else "2/21/2=x@2 2/21/3=q"
    assert asked == [*there.split(), "2/22/1=p", "2/22/2=x@2", "2/22/3=q"]
    assert isinstance(log[-2], events.WorkflowCompleted)


def test_a_checkpoint_leaves_the_iteration_that_follows_it_alone():
    """What the next iteration has begun stays."""
    old = build(inserted=False)
    before, _ = go_on(old, [start_event(old, ())], "2/20/2")
    after, asked = go_on(old, before, "2/21/2")

    assert told(before).count("=p") == 20
    assert told(after) == "1=a 2=~loop 2/21/1=p 2/21/2=q"
    assert asked == ["2/21/1=p", "2/21/2=q"]
