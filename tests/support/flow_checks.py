"""What must hold of a flow that has ended."""

from collections.abc import Sequence
from typing import Any, Final

import pytest

from resurgam.client.handle import Handle
from resurgam.core import event as events
from resurgam.errors import WorkflowFailed
from resurgam.flows.state import FlowState, FlowStatus
from resurgam.testing.environment import Environment
from support.flow_cases import FlowCase

MINUTES: Final = 7200
"""Longer than everything that takes time in a case."""


async def started(env: Environment, flow: FlowCase, steps: Sequence[Any]) -> Handle[dict[str, Any]]:
    """Register the steps that are no functions, and start the flow."""
    for one in steps:
        await env.finish(env.engine.register_step(one))
    return await env.finish(env.engine.start_flow(flow.goals, flow.init, id="flow"))


async def check(env: Environment, flow: FlowCase, handle: Handle[dict[str, Any]]) -> None:
    """Check the outcome of a flow, and its log."""
    if flow.result is not None:
        assert await env.finish(handle.result()) == flow.result
    else:
        with pytest.raises(WorkflowFailed) as failed:
            await env.finish(handle.result())
        assert flow.message in str(failed.value)
    await env.advance(MINUTES)
    check_log(await handle.history())
    assert (await handle.describe()).deactivated


def check_log(history: Sequence[events.Event]) -> None:
    """Check that every prefix of a log can be folded, and what holds for every log that is complete."""
    assert [entry.seq for entry in history] == list(range(1, len(history) + 1))
    kinds = [entry.type for entry in history]
    assert (kinds[:2], kinds[-1]) == (["flow_started", "flow_activated"], "flow_deactivated")
    state = FlowState(history[:1])
    for entry in history[1:]:
        assert entry.cause is not None
        assert entry.cause < entry.seq
        state.apply(entry)
    assert state.deactivated
    assert state.status is not FlowStatus.ACTIVE
    assert not state.outstanding
    for number, item in state.items.items():
        answers = [e for e in history if e.ref == number and e.type in ("work_succeeded", "work_failed")]
        assert len(answers) <= 1, (number, item)
