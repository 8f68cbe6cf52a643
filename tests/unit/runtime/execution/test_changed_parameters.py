"""A deployment changes the parameters of a workflow whose runs are queued, scheduled for later, or running."""

from typing import Any

import msgspec
import pytest

from resurgam import Context, Registry
from resurgam.core import event as events
from resurgam.core.state import Status
from resurgam.runtime.rehearsal.verify import verify
from resurgam.testing.simulation import START, Simulation, start_event


def define(function: Any, **options: Any) -> Any:
    return Registry().workflow(name="w", **options)(function)


async def one(ctx: Context, x: int) -> int:
    await ctx.sleep(1)
    return x


async def two(ctx: Context, x: int, y: int) -> int:
    await ctx.sleep(1)
    return x + y


async def another_type(ctx: Context, x: list[int]) -> int:
    await ctx.sleep(1)
    return sum(x)


QUEUED = start_event(define(one), (1,))
SCHEDULED = msgspec.structs.replace(QUEUED, begins_at=START + 1000)
CHANGED = pytest.mark.parametrize(
    ("changed", "said"),
    [(two, "missing a required argument: 'y'"), (another_type, "argument 'x': Expected array, got int")],
)


@CHANGED
@pytest.mark.parametrize("started", [QUEUED, SCHEDULED], ids=["queued", "scheduled"])
async def test_an_unstarted_run_is_parked_and_continues_with_the_old_code(changed, said, started):
    parked = Simulation(define(changed), log=[started])
    history = await parked.run()

    assert parked.status is Status.DIVERGED
    assert history[-1].type == "workflow_diverged"
    assert said in history[-1].diagnosis
    assert "the history has '[1]'" in history[-1].diagnosis

    resumed = Simulation(define(one), log=history)
    again = await resumed.run()

    assert resumed.status is Status.COMPLETED
    assert bytes(again[-2].result) == b"1"


@CHANGED
@pytest.mark.parametrize("started", [QUEUED, SCHEDULED], ids=["queued", "scheduled"])
def test_verify_finds_that_an_unstarted_run_does_not_fit(changed, said, started):
    assert verify(define(one), [started]).fits

    found = verify(define(changed), [started]).diverged

    assert said in str(found)
    assert found.source.startswith(__file__)


async def test_with_on_divergence_fail_the_run_fails():
    failing = Simulation(define(two, on_divergence="fail"), log=[QUEUED])
    history = await failing.run()

    [failed] = [entry for entry in history if isinstance(entry, events.WorkflowFailed)]
    assert failed.failure.type == "DETERMINISM_VIOLATION"
