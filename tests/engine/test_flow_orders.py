"""Flows have one outcome on every store: in any order of results, cached or not, wherever their worker is lost."""

from collections.abc import Sequence
from typing import Any
from zlib import crc32

import pytest

from resurgam.client.handle import Handle
from resurgam.core import event as events
from resurgam.errors import WorkflowFailed
from resurgam.flows.state import FlowState, FlowStatus
from resurgam.testing.environment import Environment
from support.engines import Engines
from support.flow_cases import CASES, FlowCase

MINUTES = 7200
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


@pytest.mark.parametrize("name", CASES)
async def test_one_outcome_in_any_order_of_results(engines: Engines, name: str, request: pytest.FixtureRequest) -> None:
    """Every store has an order of its own."""
    flow = CASES[name]
    registry, steps = flow.defined()
    async with engines.open(registry, seed=crc32(request.node.name.encode())) as env:
        await check(env, flow, await started(env, flow, steps))
