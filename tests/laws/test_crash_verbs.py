"""Every verb, killed after every event of everything that it brings about: one outcome, and nothing done twice."""

import json

import pytest

from laws.crash_programs import CANCELLED, CASES, FAILS, Case, registry
from resurgam.core import event as events
from resurgam.testing import Crashes, crash_everywhere

EXPECTED_ENDS = {FAILS: "workflow_failed", CANCELLED: "workflow_cancelled"}


async def sweep(case: Case) -> Crashes:
    return await crash_everywhere(case.workflow, *case.args, registry=registry, **case.outside)


@pytest.mark.parametrize("name", CASES)
async def test_killed_after_every_event_it_ends_as_undisturbed(name):
    case = CASES[name]

    crashes = await sweep(case)

    [end] = [entry for entry in crashes.history if entry.type.startswith("workflow_") and entry.type in ENDS]
    if isinstance(end, events.WorkflowCompleted):
        assert json.loads(bytes(end.result)) == case.expect
    else:
        assert end.type == EXPECTED_ENDS.get(case.expect)
    assert len(crashes.histories) == case.executions
    assert set(case.wrote) <= {entry.type for log in crashes.histories.values() for entry in log}
    # After the start, and after every entry but the last; what is written at once is not parted.
    assert crashes.points > len(crashes.history) / 2


ENDS = ("workflow_completed", "workflow_failed", "workflow_cancelled")


@pytest.mark.parametrize("name", CASES)
async def test_every_answer_is_from_one_attempt_at_most(name):
    """Of what is recorded, each activity, child and promise has one answer, over all attempts of a run."""
    crashes = await sweep(CASES[name])

    for log in crashes.histories.values():
        answered = [entry.ref for entry in log if entry.type in ANSWERS]
        assert len(answered) == len(set(answered))


ANSWERS = ("activity_completed", "activity_failed", "child_completed", "child_failed", "promise_resolved")
