"""Which event may follow which: one table for work items, one for steps, one for flows, each tried in full."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core import flow_event as fe
from resurgam.core.entry import Event, Failure
from resurgam.core.errors import CorruptHistory
from resurgam.flows import model as m
from resurgam.flows.state import FlowState
from support.flow_runs import Equality, FlowRun, started
from support.flow_steps import step

ERROR = Failure(type="E", message="e")
ABOUT: dict[str, Any] = {"ref": 1, "step": "E"}
COMPENSATION: dict[str, Any] = {"ref": 4, "step": "E"}

WORK: dict[str, Event] = {
    "work_started": fe.WorkStarted(item=1, step="E", attempt=9),
    "work_succeeded": fe.WorkSucceeded(**ABOUT, outputs=Raw(b'{"r":1}')),
    "work_failed": fe.WorkFailed(**ABOUT, failure=ERROR),
    "work_not_completed": fe.WorkNotCompleted(**ABOUT, failure=ERROR),
    "work_acknowledged": fe.WorkAcknowledged(**ABOUT, deadline=9),
    "dispatch_deferred": fe.DispatchDeferred(**ABOUT, next_at=1, reason="unhealthy"),
    "retry_scheduled": fe.RetryScheduled(item=1, step="E", retry_count=1, next_retry_at=1),
    "work_cancelled": fe.WorkCancelled(**ABOUT),
    "comp_retry_scheduled": fe.CompRetryScheduled(**COMPENSATION, retry_count=1, next_retry_at=1, failure=ERROR),
    "comp_succeeded": fe.CompSucceeded(**COMPENSATION),
    "comp_failed": fe.CompFailed(**COMPENSATION, failure=ERROR),
}
UNDONE = (WORK["work_succeeded"], fe.WorkFailed(ref=2, step="E", failure=ERROR))
LEADS_TO: dict[str, Sequence[Event]] = {
    "pending": (),
    "active": (WORK["work_started"],),
    "not_completed": (WORK["work_not_completed"],),
    "succeeded": (WORK["work_succeeded"],),
    "failed": (WORK["work_failed"],),
    "cancelled": (WORK["work_cancelled"],),
    "compensating": UNDONE,
    "compensated": (*UNDONE, WORK["comp_succeeded"]),
    "compensation_failed": (*UNDONE, WORK["comp_failed"]),
}
_ANSWERS = {
    "work_started": "active",
    "work_succeeded": "succeeded",
    "work_failed": "failed",
    "work_cancelled": "cancelled",
}
_NOT_YET = {
    "work_not_completed": "not_completed",
    "work_acknowledged": "active",
    "dispatch_deferred": "pending",
}
WORK_TABLE: dict[str, dict[str, str]] = {
    "pending": {**_ANSWERS, **_NOT_YET},
    "active": {**_ANSWERS, **_NOT_YET},
    "not_completed": {**_ANSWERS, "retry_scheduled": "pending"},
    "compensating": {
        "dispatch_deferred": "compensating",
        "comp_retry_scheduled": "compensating",
        "comp_succeeded": "compensated",
        "comp_failed": "compensation_failed",
    },
}
"""Status, event, status after; any other pair is not recorded."""


def a_run() -> FlowRun:
    """Return a flow of one step with three work items, the first of which is looked at; the others stay outstanding."""
    one = msgspec.structs.replace(
        step("E: > r"),
        attributes={"r": m.Output(), "v": m.Required(required=m.RequiredConfig(for_each=True))},
        python=m.PythonConfig(activity="E", compensate="undo"),
        work_config=m.WorkConfig(parallelism=3),
    )
    return FlowRun([one], ["E"], {"v": [["a", "b", "c"]]})


@pytest.mark.parametrize(("status", "kind"), [*product(LEADS_TO, WORK)])
def test_an_event_of_a_work_item_is_recorded_where_the_table_has_it_and_nowhere_else(status: str, kind: str) -> None:
    run = a_run()
    for event in LEADS_TO[status]:
        run.take(event)
    item = run.state.items[1]
    assert item.status == status
    before = len(run.log)
    run.take(WORK[kind])
    after = WORK_TABLE.get(status, {}).get(kind)
    assert (len(run.log) > before) == (after is not None)
    if after is not None:
        assert run.log[before].type == kind
        assert "compensating" in (status, item.status) or item.status == after
    else:
        assert item.status == status


STEPS: dict[str, Event] = {
    "step_started": fe.StepStarted(step="E", inputs=Raw(b"{}"), first=1, items=(Raw(b"{}"),)),
    "step_completed": fe.StepCompleted(step="E"),
    "step_failed": fe.StepFailed(step="E", failure=ERROR),
    "step_skipped": fe.StepSkipped(step="E", reason="r"),
}
STEP_TABLE: dict[str, dict[str, str]] = {
    "pending": {"step_started": "active", "step_skipped": "skipped", "step_failed": "failed"},
    "active": {"step_completed": "completed", "step_failed": "failed"},
    "completed": {},
    "failed": {},
    "skipped": {},
}
STEP_LEADS_TO = {
    "pending": (),
    "active": ("step_started",),
    "completed": ("step_started", "step_completed"),
    "failed": ("step_failed",),
    "skipped": ("step_skipped",),
}


def folded(*entries: Event) -> FlowState:
    log = [started([step("E: > r")], ["E"], {}, Equality()), fe.FlowActivated(), *entries]
    return FlowState([msgspec.structs.replace(entry, seq=number) for number, entry in enumerate(log, 1)])


@pytest.mark.parametrize(("status", "kind"), [*product(STEP_TABLE, STEPS)])
def test_a_step_moves_as_the_table_says_and_any_other_log_is_corrupt(status: str, kind: str) -> None:
    before = [STEPS[name] for name in STEP_LEADS_TO[status]]
    assert folded(*before).steps["E"].status == status
    if kind in STEP_TABLE[status]:
        assert folded(*before, STEPS[kind]).steps["E"].status == STEP_TABLE[status][kind]
    else:
        with pytest.raises(CorruptHistory, match=f"is {kind} of step 'E', which is {status}"):
            folded(*before, STEPS[kind])


ENDS: dict[str, Event] = {
    "completed": fe.FlowCompleted(),
    "failed": fe.FlowFailed(failure=ERROR),
    "cancelled": fe.FlowCancelled(),
    "terminated": events.WorkflowTerminated(),
}


@pytest.mark.parametrize(("first", "second"), [*product(ENDS, ENDS)])
def test_a_flow_ends_once(first: str, second: str) -> None:
    assert folded(ENDS[first]).status == first
    with pytest.raises(CorruptHistory, match=f"but the flow is {first}"):
        folded(ENDS[first], ENDS[second])


@pytest.mark.parametrize("kind", [*WORK, *STEPS])
def test_nothing_follows_the_deactivation(kind: str) -> None:
    with pytest.raises(CorruptHistory, match="cannot occur in a flow that is cancelled"):
        folded(ENDS["cancelled"], fe.FlowDeactivated(), (WORK | STEPS)[kind])


def test_an_entry_that_is_missing_or_twice_in_the_log_is_found() -> None:
    state = folded()
    with pytest.raises(CorruptHistory, match="entry 5 follows entry 2"):
        state.apply(fe.FlowCompleted(seq=5))
