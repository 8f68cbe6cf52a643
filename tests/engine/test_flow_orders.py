"""Flows have one outcome on every store: in any order of results, cached or not."""

import pytest

from support.engines import Engines
from support.flow_cases import CASES
from support.flow_checks import check, started


@pytest.mark.parametrize("name", CASES)
async def test_one_outcome_in_any_order_of_results(engines: Engines, name: str, request: pytest.FixtureRequest) -> None:
    """Every store has an order of its own."""
    flow = CASES[name]
    registry, steps = flow.defined()
    async with engines.open(registry) as env:
        await check(env, flow, await started(env, flow, steps))
