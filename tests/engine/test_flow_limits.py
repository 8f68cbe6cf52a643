"""As many work items as a step may have are run; one more is refused, and fails its step alone."""

from typing import Annotated, Any

import pytest

from resurgam import Registry
from resurgam.errors import WorkflowFailed
from resurgam.flows import Input, StepDecorator
from resurgam.flows.model import MAX_WORK_ITEMS
from support.engines import Engines


def counting() -> tuple[Registry, list[int]]:
    """Return a registry with a step that runs for each number, and one that adds up what it returns."""
    registry, done = Registry(), []
    step = StepDecorator(registry)

    @step(parallelism=500)
    async def double(numbers: Annotated[int, Input(for_each=True)]) -> int:
        done.append(numbers)
        return 2 * numbers

    @step
    async def total(double: list[dict[str, Any]]) -> int:
        return sum(one["double"] for one in double)

    return registry, done


@pytest.mark.long
async def test_ten_thousand_work_items_run(engines: Engines) -> None:
    registry, done = counting()
    async with engines.open(registry, max_activities=500, seed=None) as env:  # one after the other would take long
        handle = await env.engine.start_flow(["total"], {"numbers": list(range(MAX_WORK_ITEMS))})
        assert await env.finish(handle.result()) == {"total": MAX_WORK_ITEMS * (MAX_WORK_ITEMS - 1)}
    assert sorted(done) == list(range(MAX_WORK_ITEMS))


async def test_ten_thousand_and_one_work_items_are_refused(engines: Engines) -> None:
    registry, done = counting()
    async with engines.open(registry) as env:
        handle = await env.engine.start_flow(["double"], {"numbers": list(range(MAX_WORK_ITEMS + 1))})
        with pytest.raises(WorkflowFailed, match="a step has at most 10,000 work items, got 10,001"):
            await env.finish(handle.result())
    assert done == []
