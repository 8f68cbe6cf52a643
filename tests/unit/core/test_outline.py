"""The outline of a log of any kind: what an import must know to refuse one that contradicts itself."""

import msgspec
import pytest
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core import flow_event as fe
from resurgam.core.errors import CorruptHistory
from resurgam.core.outline import FlowOutline, awaits_activity, outline_of
from resurgam.core.state import InstanceState, Status

FAILURE = events.Failure(type="ValueError", message="no")


def started(kind=fe.FlowStarted):
    ids = dict.fromkeys(("name", "queue", "entity_id", "execution_id", "run_id", "tree_id"), "f")
    return kind(seq=1, **ids)


def outline(*entries):
    made = FlowOutline()
    for seq, entry in enumerate((started(), *entries), 1):
        made.apply(_numbered(entry, seq))
    return made


def _numbered(entry, seq):
    return msgspec.structs.replace(entry, seq=seq)


STEP = fe.StepStarted(step="a", inputs=Raw(b"{}"), first=3, items=(Raw(b"{}"), Raw(b"{}")))


def test_a_workflow_is_folded_by_its_own_state():
    assert isinstance(outline_of("workflow"), InstanceState)
    assert isinstance(outline_of("counter"), InstanceState)
    assert isinstance(outline_of("flow"), FlowOutline)
    assert isinstance(outline_of("catalog"), FlowOutline)


def test_work_items_and_compensations_wait_for_an_answer_until_it_comes():
    made = outline(STEP, fe.CompStarted(item=3, step="a", number=7))
    assert [number for number in range(9) if awaits_activity(made, number)] == [3, 4, 7]
    for answer in (
        fe.WorkSucceeded(ref=3, step="a"),
        fe.WorkFailed(ref=4, step="a", failure=FAILURE),
        fe.CompFailed(ref=7, step="a", failure=FAILURE),
    ):
        made.apply(_numbered(answer, made.last_seq + 1))
        assert not awaits_activity(made, answer.ref)


@pytest.mark.parametrize(
    ("end", "status"),
    [
        (fe.FlowCompleted(), Status.COMPLETED),
        (fe.FlowFailed(failure=FAILURE), Status.FAILED),
        (fe.FlowCancelled(), Status.CANCELLED),
        (events.WorkflowTerminated(), Status.TERMINATED),
    ],
)
def test_an_end_decides_the_status_and_late_results_do_not_change_it(end, status):
    made = outline(STEP, end, fe.WorkSucceeded(ref=3, step="a"), fe.FlowDigestUpdated(status="x"))
    assert (made.status, made.deactivated) == (status, False)
    made.apply(_numbered(fe.FlowDeactivated(), made.last_seq + 1))
    assert made.deactivated


def test_a_log_that_contradicts_itself_is_corrupt():
    with pytest.raises(CorruptHistory, match="entry 3 follows entry 1"):
        outline().apply(_numbered(fe.FlowActivated(), 3))
    with pytest.raises(CorruptHistory, match="entry 2 is flow_started, which cannot occur in status running"):
        outline(started())
    with pytest.raises(CorruptHistory, match="entry 1 is flow_activated, which cannot occur in status None"):
        FlowOutline().apply(_numbered(fe.FlowActivated(), 1))
    with pytest.raises(CorruptHistory, match="entry 4 is flow_activated, which cannot occur in status completed"):
        outline(fe.FlowCompleted(), fe.FlowDeactivated(), fe.FlowActivated())
