"""What one process has written, a process with another PYTHONHASHSEED goes on with: replays, and attempts that carry over."""

import pytest

from laws import hashed_programs
from resurgam.core import event as events
from resurgam.testing import Simulation
from resurgam.testing.replay import replay

SEEDS = (1, 2)


@pytest.fixture(scope="module", params=SEEDS)
def worlds(request):
    return hashed_programs.histories_under(request.param)


async def test_a_history_of_sets_replays_under_another_hash_seed(worlds):
    assert len(worlds) == hashed_programs.PROGRAMS
    for world in worlds:
        for log in world.values():
            report = await replay(hashed_programs.registry.workflows.find(log[0].name), log)
            assert report.diverged is None
            assert report.new == ()
            assert report.finished


async def test_a_retry_under_another_hash_seed_repeats_nothing_that_was_done(worlds):
    for world in worlds:
        # A worker of another seed takes up the second attempt, of which only the first entry is written.
        second = next(
            log for log in world.values() if isinstance(log[0], events.WorkflowStarted) and log[0].attempt == 2
        )
        resumed = Simulation(hashed_programs.program, log=second[:1], registry=hashed_programs.registry)
        await resumed.run()
        assert resumed.performed_by == [], "an activity or a child was done a second time"
        assert resumed.log == second
        assert isinstance(second[-2], events.WorkflowCompleted)
        assert resumed.published == []
