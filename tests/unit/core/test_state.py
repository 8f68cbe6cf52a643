"""Folding a history into the state of an instance: which event may occur in which status, and its effect."""

import typing

import msgspec
import pytest
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.commands import COMMANDS
from resurgam.core.errors import CorruptHistory
from resurgam.core.event import AnyEvent, Failure
from resurgam.core.location import Location
from resurgam.core.state import TRANSITIONS, InstanceState, Status, tags_after

FAILURE = Failure(type="builtins.ValueError", message="bad")
START = events.WorkflowStarted(
    seq=1, at=10, name="w", queue="q", entity_id="e", execution_id="x", run_id="r", tree_id="t", python="3.11"
)
PLACE = {"location": Location((1,)), "command": "C(0)"}
MAKE = {
    "workflow_started": lambda seq, ref: events.WorkflowStarted(
        seq=seq, name="w", queue="q", entity_id="e", execution_id="x", run_id="r", tree_id="t", python="3.11"
    ),
    "workflow_completed": lambda seq, ref: events.WorkflowCompleted(seq=seq),
    "workflow_failed": lambda seq, ref: events.WorkflowFailed(seq=seq, failure=FAILURE),
    "workflow_cancelled": lambda seq, ref: events.WorkflowCancelled(seq=seq),
    "workflow_diverged": lambda seq, ref: events.WorkflowDiverged(seq=seq, diagnosis="d"),
    "workflow_deactivated": lambda seq, ref: events.WorkflowDeactivated(seq=seq),
    "workflow_archiving": lambda seq, ref: events.WorkflowArchiving(seq=seq),
    "workflow_archived": lambda seq, ref: events.WorkflowArchived(seq=seq, digest="d"),
    "signal_received": lambda seq, ref: events.SignalReceived(seq=seq, name="s", id="i"),
    "workflow_terminated": lambda seq, ref: events.WorkflowTerminated(seq=seq),
    "cancel_requested": lambda seq, ref: events.CancelRequested(seq=seq),
    "activity_scheduled": lambda seq, ref: events.ActivityScheduled(seq=seq, name="a", queue="q", **PLACE),
    "activity_completed": lambda seq, ref: events.ActivityCompleted(seq=seq, ref=ref),
    "activity_failed": lambda seq, ref: events.ActivityFailed(seq=seq, ref=ref, failure=FAILURE),
    "activity_cancelled": lambda seq, ref: events.ActivityCancelled(seq=seq, ref=ref),
    "activity_retry_scheduled": lambda seq, ref: events.ActivityRetryScheduled(
        seq=seq, ref=ref, attempt=1, next_at=5, failure=FAILURE
    ),
    "timer_started": lambda seq, ref: events.TimerStarted(seq=seq, deadline=5, **PLACE),
    "timer_fired": lambda seq, ref: events.TimerFired(seq=seq, ref=ref),
    "timer_cancelled": lambda seq, ref: events.TimerCancelled(seq=seq, ref=ref),
    "operation_started": lambda seq, ref: events.OperationStarted(seq=seq, name="o", **PLACE),
    "operation_completed": lambda seq, ref: events.OperationCompleted(seq=seq, ref=ref),
    "operation_failed": lambda seq, ref: events.OperationFailed(seq=seq, ref=ref, failure=FAILURE),
    "operation_cancelled": lambda seq, ref: events.OperationCancelled(seq=seq, ref=ref),
    "state_set": lambda seq, ref: events.StateSet(seq=seq, name="v", value=Raw(b"1"), **PLACE),
    "state_cleared": lambda seq, ref: events.StateCleared(seq=seq, name="v", **PLACE),
    "tags_set": lambda seq, ref: events.TagsSet(seq=seq, tags={"t": "1"}, **PLACE),
    "state_read": lambda seq, ref: events.StateRead(seq=seq, name="v", **PLACE),
    "listen_started": lambda seq, ref: events.ListenStarted(seq=seq, name="s", names=("s",), **PLACE),
    "signals_consumed": lambda seq, ref: events.SignalsConsumed(seq=seq, ref=ref, signals=()),
    "listen_timed_out": lambda seq, ref: events.ListenTimedOut(seq=seq, ref=ref),
    "listen_cancelled": lambda seq, ref: events.ListenCancelled(seq=seq, ref=ref),
    "branch_started": lambda seq, ref: events.BranchStarted(seq=seq, **PLACE),
    "race_started": lambda seq, ref: events.RaceStarted(seq=seq, size=2, **PLACE),
    "race_decided": lambda seq, ref: events.RaceDecided(seq=seq, ref=ref, winner=0),
    "loop_started": lambda seq, ref: events.LoopStarted(seq=seq, **PLACE),
    "loop_checkpointed": lambda seq, ref: events.LoopCheckpointed(seq=seq, ref=ref, iteration=1),
    "loop_completed": lambda seq, ref: events.LoopCompleted(seq=seq, ref=ref, iteration=1),
    "version_checked": lambda seq, ref: events.VersionChecked(seq=seq, answer=2, **PLACE),
    "step_removed": lambda seq, ref: events.StepRemoved(seq=seq, removed="timer_started", **PLACE),
    "workflow_begun": lambda seq, ref: events.WorkflowBegun(seq=seq),
    "workflow_continued": lambda seq, ref: events.WorkflowContinued(seq=seq, run_id="r2", execution_id="x2"),
    "workflow_retried": lambda seq, ref: events.WorkflowRetried(seq=seq, failure=FAILURE, execution_id="x2", next_at=5),
    "workflow_paused": lambda seq, ref: events.WorkflowPaused(seq=seq),
    "workflow_resumed": lambda seq, ref: events.WorkflowResumed(seq=seq),
    "signal_handled": lambda seq, ref: events.SignalHandled(seq=seq, signal=ref or 2, scope=1),
    "update_accepted": lambda seq, ref: events.UpdateAccepted(seq=seq, name="u", id="i", scope=1),
    "update_completed": lambda seq, ref: events.UpdateCompleted(seq=seq, ref=ref, id="i"),
    "update_rejected": lambda seq, ref: events.UpdateRejected(seq=seq, name="u", id="i", failure=FAILURE),
    "child_scheduled": lambda seq, ref: events.ChildScheduled(
        seq=seq, name="c", queue="q", entity_id="e2", run_id="r2", **PLACE
    ),
    "child_started": lambda seq, ref: events.ChildStarted(seq=seq, ref=ref, execution_id="x2"),
    "child_cancel_requested": lambda seq, ref: events.ChildCancelRequested(seq=seq, ref=ref),
    "child_completed": lambda seq, ref: events.ChildCompleted(seq=seq, ref=ref),
    "child_failed": lambda seq, ref: events.ChildFailed(seq=seq, ref=ref, failure=FAILURE),
    "child_cancelled": lambda seq, ref: events.ChildCancelled(seq=seq, ref=ref),
    "flow_scheduled": lambda seq, ref: events.FlowScheduled(
        seq=seq, name="g", queue="q", entity_id="e2", run_id="r2", **PLACE
    ),
    "flow_answered": lambda seq, ref: events.FlowAnswered(seq=seq, ref=ref),
    "promise_created": lambda seq, ref: events.PromiseCreated(seq=seq, name="p", promise_id="i", **PLACE),
    "promise_resolved": lambda seq, ref: events.PromiseResolved(seq=seq, ref=ref),
    "promise_rejected": lambda seq, ref: events.PromiseRejected(seq=seq, ref=ref, failure=FAILURE),
    "promise_timed_out": lambda seq, ref: events.PromiseTimedOut(seq=seq, ref=ref),
    "promise_cancelled": lambda seq, ref: events.PromiseCancelled(seq=seq, ref=ref),
    "promise_settled": lambda seq, ref: events.PromiseSettled(seq=seq, name="i", **PLACE),
    "signal_sent": lambda seq, ref: events.SignalSent(seq=seq, name="s", entity_id="e2", id="i", **PLACE),
    "signal_delivered": lambda seq, ref: events.SignalDelivered(seq=seq, ref=ref),
    "signal_failed": lambda seq, ref: events.SignalFailed(seq=seq, ref=ref, failure=FAILURE),
    "message_published": lambda seq, ref: events.MessagePublished(seq=seq, name="t", **PLACE),
    "saga_step_registered": lambda seq, ref: events.SagaStepRegistered(seq=seq, name="a", **PLACE),
    "saga_compensation_started": lambda seq, ref: events.SagaCompensationStarted(seq=seq, ref=ref),
    "saga_closed": lambda seq, ref: events.SagaClosed(seq=seq, ref=ref, outcome="completed"),
}
TAG = {
    kind: str(kind.__struct_config__.tag)
    for kind in typing.get_args(AnyEvent)
    if kind.__module__ != "resurgam.core.flow_event"  # flows have a state of their own
}
COMMAND_OF = {answer: command for command, kind in COMMANDS.items() for answer in kind.answers}
COMMAND_OF[events.ActivityRetryScheduled] = events.ActivityScheduled
COMMAND_OF[events.LoopCheckpointed] = events.LoopStarted
COMMAND_OF[events.ChildStarted] = events.ChildScheduled
COMMAND_OF[events.ChildCancelRequested] = events.ChildScheduled
COMMAND_OF[events.SagaCompensationStarted] = events.SagaStepRegistered
ON_THE_WAY = {
    *(events.ActivityRetryScheduled, events.LoopCheckpointed, events.ChildStarted),
    *(events.ChildCancelRequested, events.SagaCompensationStarted),
}
# Events that must precede these, though they are no commands.
BEFORE = COMMAND_OF | {events.SignalHandled: events.SignalReceived, events.UpdateCompleted: events.UpdateAccepted}

OUTSIDE = {"signal_received", "cancel_requested"}
HALTS = {"workflow_paused", "workflow_resumed"}
LATE = {tag for tag in MAKE if tag.startswith(("activity_", "operation_", "child_", "promise_"))} - {
    *("activity_scheduled", "operation_started", "child_scheduled"),
    *("promise_created", "promise_settled"),
} | {"signal_delivered", "signal_failed", "flow_answered"}
ENDS = {
    "workflow_completed": "completed",
    "workflow_failed": "failed",
    "workflow_cancelled": "cancelled",
    "workflow_terminated": "terminated",
    "workflow_continued": "continued",
    "workflow_retried": "failed",
}
COMPLETE = {"workflow_archiving", "workflow_archived"}
AT_WORK = set(MAKE) - set(ENDS) - COMPLETE - {"workflow_started", "workflow_diverged", "workflow_deactivated"}
LEGAL = {
    (None, "workflow_started"): "running",
    **{(status, tag): "running" for status in ("running", "diverged") for tag in AT_WORK},
    **{(status, tag): end for status in ("running", "diverged") for tag, end in ENDS.items()},
    **{(status, "workflow_diverged"): "diverged" for status in ("running", "diverged")},
    **{("scheduled", tag): "scheduled" for tag in OUTSIDE | HALTS},
    **{("scheduled", tag): end for tag, end in ENDS.items()},
    ("scheduled", "workflow_begun"): "running",
    **{(end, tag): end for end in ENDS.values() for tag in LATE | OUTSIDE | {"workflow_deactivated"}},
}
STATUSES = [None, "scheduled", "running", "diverged", "completed", "failed", "cancelled", "terminated", "continued"]
PAIRS = [(status, tag) for status in STATUSES for tag in MAKE]
INTO = {
    "diverged": "workflow_diverged",
    "completed": "workflow_completed",
    "failed": "workflow_failed",
    "cancelled": "workflow_cancelled",
    "terminated": "workflow_terminated",
    "continued": "workflow_continued",
}


def state_in(status, *, open_kind=None) -> InstanceState:
    """Return a state in *status* whose entry 2, if requested, is an open command."""
    log = [] if status is None else [START]
    if status == "scheduled":
        return InstanceState([msgspec.structs.replace(START, deferred=True)])
    if open_kind is not None and log:
        log.append(MAKE[TAG[open_kind]](2, None))
    if status in INTO:
        log.append(MAKE[INTO[status]](len(log) + 1, None))
    return InstanceState(log)


def started(*tags) -> InstanceState:
    return InstanceState([START, *(MAKE[tag](seq, None) for seq, tag in enumerate(tags, 2))])


def test_the_samples_cover_the_union():
    assert set(MAKE) == set(TAG.values())


def test_the_table_lists_all_legal_transitions():
    table = {(status, TAG[kind]): after for status, row in TRANSITIONS.items() for kind, after in row.items()}
    assert table == LEGAL


@pytest.mark.parametrize(("status", "tag"), [pair for pair in PAIRS if pair in LEGAL])
def test_a_legal_event_leads_to_the_status_of_the_table(status, tag):
    kind = next(kind for kind, name in TAG.items() if name == tag)
    state = state_in(status, open_kind=BEFORE.get(kind))
    state.apply(MAKE[tag](state.last_seq + 1, 2))
    assert state.status == LEGAL[status, tag]


@pytest.mark.parametrize(("status", "tag"), [pair for pair in PAIRS if pair not in LEGAL])
def test_any_other_event_is_a_corrupt_history(status, tag):
    kind = next(kind for kind, name in TAG.items() if name == tag)
    state = state_in(status, open_kind=BEFORE.get(kind))
    seq = state.last_seq + 1
    with pytest.raises(CorruptHistory) as caught:
        state.apply(MAKE[tag](seq, 2))
    assert str(caught.value) == f"entry {seq} is {tag}, which cannot occur in status {status}"
    assert (state.status, state.last_seq) == (status, seq - 1)


@pytest.mark.parametrize("end", [*ENDS])
def test_a_complete_history_can_be_archived(end):
    state = started(end, "workflow_deactivated", "workflow_archiving", "workflow_archived")
    assert (state.status, state.deactivated, state.last_seq) == (ENDS[end], True, 5)


def test_tags_are_changed_one_by_one_and_kept_by_checkpoints():
    begun = msgspec.structs.replace(START, tags={"a": "1", "b": "1"})
    changed = events.TagsSet(seq=2, tags={"b": None, "c": "2"}, **PLACE)
    loop = events.LoopStarted(seq=3, **PLACE)
    checkpoint = events.LoopCheckpointed(seq=4, ref=3, iteration=1)
    assert InstanceState([begun]).tags == {"a": "1", "b": "1"}
    log = [begun, changed, loop, checkpoint]
    assert InstanceState(log).tags == tags_after(log) == {"a": "1", "c": "2"}
    log[-1] = msgspec.structs.replace(checkpoint, tags={"x": "y"})
    assert InstanceState(log).tags == tags_after(log) == {"x": "y"}


@pytest.mark.parametrize("tag", [tag for tag in MAKE if tag not in COMPLETE])
@pytest.mark.parametrize("end", [*ENDS])
def test_nothing_else_follows_a_deactivation(end, tag):
    state = started("activity_scheduled", end, "workflow_deactivated")
    assert state.deactivated is True
    with pytest.raises(CorruptHistory, match="entry 5 is"):
        state.apply(MAKE[tag](5, 2))


@pytest.mark.parametrize("seq", [0, 1, 2, 4, 100, -1])
def test_a_missing_or_duplicate_entry_is_a_corrupt_history(seq):
    state = started("signal_received")
    with pytest.raises(CorruptHistory) as caught:
        state.apply(MAKE["signal_received"](seq, None))
    assert str(caught.value) == f"entry {seq} follows entry 2: an entry is missing or duplicated"


def test_an_empty_history_has_an_empty_state():
    state = InstanceState()
    assert (state.status, state.started, state.last_seq, state.last_at) == (None, None, 0, 0)
    assert (state.open, state.variables, state.mailbox) == ({}, {}, {})
    assert (state.ended, state.diverged, state.deactivated) == (None, None, False)


def test_the_first_entry_is_kept():
    state = InstanceState([START])
    assert state.started is START
    assert (state.last_seq, state.last_at) == (1, 10)


def test_time_never_decreases():
    state = InstanceState([START, events.CancelRequested(seq=2, at=5)])
    assert state.last_at == 10


@pytest.mark.parametrize(("answer", "command"), [*COMMAND_OF.items()])
def test_the_first_answer_closes_a_command_and_a_second_is_corrupt(answer, command):
    state = started(TAG[command])
    assert list(state.open) == [2]
    first = MAKE[TAG[answer]](3, 2)
    assert state.accepts(first) is True
    state.apply(first)
    if answer in ON_THE_WAY:
        assert list(state.open) == [2], "it is no answer yet"
        return
    assert state.open == {}
    second = MAKE[TAG[answer]](4, 2)
    assert state.accepts(second) is False
    with pytest.raises(CorruptHistory) as caught:
        state.apply(second)
    assert str(caught.value) == f"entry 4 ({TAG[answer]}) answers entry 2, which is not open"


@pytest.mark.parametrize(("answer", "command"), [*COMMAND_OF.items()])
def test_an_answer_of_another_kind_of_command_is_corrupt(answer, command):
    other = "timer_started" if command is not events.TimerStarted else "activity_scheduled"
    with pytest.raises(CorruptHistory):
        started(other).apply(MAKE[TAG[answer]](3, 2))


@pytest.mark.parametrize("tag", ["state_set", "state_cleared", "branch_started"])
def test_a_command_without_an_answer_is_never_open(tag):
    assert started(tag).open == {}


def test_events_that_are_no_answers_are_always_accepted():
    assert started().accepts(MAKE["signal_received"](2, None)) is True


def test_an_answer_after_the_end_closes_its_command():
    state = started("activity_scheduled", "workflow_completed")
    state.apply(MAKE["activity_completed"](4, 2))
    assert state.open == {}
    assert state.status == "completed"


def test_variables_are_set_overwritten_and_cleared():
    def set_to(seq, name, value):
        return events.StateSet(seq=seq, name=name, value=Raw(value), **PLACE)

    state = InstanceState([START, set_to(2, "a", b"1"), set_to(3, "b", b"2"), set_to(4, "a", b"3")])
    assert state.variables == {"a": Raw(b"3"), "b": Raw(b"2")}
    state.apply(events.StateCleared(seq=5, name="a", **PLACE))
    state.apply(events.StateCleared(seq=6, name="never set", **PLACE))
    assert state.variables == {"b": Raw(b"2")}


def test_signals_wait_in_the_mailbox_until_they_are_consumed():
    state = started("signal_received", "signal_received", "listen_started", "signal_received")
    assert list(state.mailbox) == [2, 3, 5]
    state.apply(events.SignalsConsumed(seq=6, ref=4, signals=(2, 5)))
    assert list(state.mailbox) == [3]
    assert state.open == {}


@pytest.mark.parametrize("signals", [(2, 2), (3,), (99,)])
def test_a_signal_that_is_not_in_the_mailbox_cannot_be_consumed(signals):
    state = started("signal_received", "listen_started")
    with pytest.raises(CorruptHistory):
        state.apply(events.SignalsConsumed(seq=4, ref=3, signals=signals))


@pytest.mark.parametrize("tag", [*ENDS])
def test_the_end_is_kept(tag):
    state = started(tag)
    assert state.ended is not None
    assert state.ended.type == tag


def test_a_divergence_is_kept():
    state = started("workflow_diverged")
    assert state.diverged is not None
    assert state.diverged.diagnosis == "d"
    assert state.status is Status.DIVERGED


@pytest.mark.parametrize(
    ("status", "terminal"),
    [("running", False), ("diverged", False), ("completed", True), ("failed", True), ("cancelled", True)],
)
def test_statuses_after_an_end_are_terminal(status, terminal):
    assert Status(status).terminal is terminal


def test_every_status_has_a_row():
    """Except paused, which the store keeps beside the history: a run can be paused in any status."""
    assert set(TRANSITIONS) == {None, *Status} - {Status.PAUSED}


def test_schedule_does_what_apply_does_for_the_command_of_an_activity():
    command = events.ActivityScheduled(seq=2, at=11, name="a", queue="q", **PLACE)
    applied, scheduled = InstanceState([START]), InstanceState([START])
    applied.apply(command)
    scheduled.schedule(command)
    assert vars(scheduled) == vars(applied)
    assert list(scheduled.open) == [2]


@pytest.mark.parametrize("parked", [False, True])
def test_complete_does_what_apply_does_for_the_result_of_an_open_activity(parked):
    log = [START, events.ActivityScheduled(seq=2, at=11, name="a", queue="q", **PLACE)]
    log += [events.WorkflowDiverged(seq=3, at=12, diagnosis="d")] * parked
    result = events.ActivityCompleted(seq=len(log) + 1, at=20, ref=2, result=Raw(b"1"))
    applied, completed = InstanceState(log), InstanceState(log)
    applied.apply(result)
    completed.complete(result)
    assert vars(completed) == vars(applied)
