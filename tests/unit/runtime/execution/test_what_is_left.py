"""What an execution says about the work that is left: plain attributes, kept up to date by all that changes it."""

import pytest

from resurgam import Context, Registry
from resurgam.core import event as events
from resurgam.core.outcome import Entry
from resurgam.runtime.execution.execution import Execution
from resurgam.testing.simulation import START, start_event


async def two_operations(ctx: Context) -> None:
    await ctx.run(lambda: 1, name="x")
    await ctx.run(lambda: 2, name="y")


@pytest.fixture
def execution():
    workflow = Registry().workflow(two_operations)
    begun = Execution(workflow, [start_event(workflow, ())])
    assert not begun.wants_more
    begun.advance([], START)
    return begun


def answer(operation, seq=None):
    return Entry(seq, events.OperationCompleted(ref=operation.ref, at=START))


async def test_operations_are_left_until_they_are_taken(execution):
    assert execution.wants_more
    (first,) = execution.take_operations()
    assert not execution.wants_more
    execution.advance([answer(first)], START)
    assert execution.wants_more
    (second,) = execution.take_operations()
    execution.advance([answer(second)], START)
    assert not execution.wants_more


async def test_operations_that_run_already_are_not_left(execution):
    execution.go_on_with([2])
    assert not execution.wants_more


async def test_nothing_is_left_of_a_closed_execution(execution):
    execution.close()
    assert not execution.wants_more


async def test_operations_of_a_paused_run_are_left_until_it_is_resumed(execution):
    pause = events.WorkflowPaused(at=START)
    execution.advance([Entry(1, pause)], START)
    assert (execution.paused, execution.wants_more) == (True, False)
    execution.advance([Entry(2, events.WorkflowResumed(at=START))], START)
    assert (execution.paused, execution.wants_more) == (False, True)


async def test_an_execution_that_is_paused_when_it_is_loaded_starts_nothing():
    workflow = Registry().workflow(two_operations)
    execution = Execution(workflow, [start_event(workflow, ())])
    execution.pause()
    execution.advance([], START)
    assert execution.take_operations() == []
    assert (execution.paused, execution.wants_more) == (True, False)
