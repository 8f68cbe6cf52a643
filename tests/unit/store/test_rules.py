"""The rules that all stores share. Stores are compared with each other, which says nothing about what they share."""

from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from resurgam.core import event as events
from resurgam.core.flow_event import WorkStarted
from resurgam.core.location import Location
from resurgam.core.outcome import ActivityRequest, ChildRequest, Entry, Message, Outcome
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store import rules
from resurgam.store.encoding import encode
from resurgam.store.rules import Way

FAILURE = events.Failure(type="E", message="no")
PARENT = events.Parent(
    entity_id="parent", run_id="p", execution_id="p-1", location=Location((1,)), key="call", first_run="run"
)


def started(**fields: Any) -> events.WorkflowStarted:
    given = {"entity_id": "child", "execution_id": "child-1", "run_id": "run", "tree_id": "run", **fields}
    return events.WorkflowStarted(seq=1, at=1, name="n", queue="q", python="3.11", **given)


def instance(status: Status = Status.RUNNING, **fields: Any) -> r.Instance:
    return replace(r.Instance.of(started(**fields)), status=status)


def request(**fields: Any) -> ChildRequest:
    return ChildRequest(
        started=started(parent=PARENT, **fields),
        created=events.ChildStarted(ref=2, execution_id="child-1"),
        refused=events.ChildFailed(ref=2, failure=FAILURE),
    )


OPEN, CLOSED = instance(), instance(Status.COMPLETED)
REPLACE = events.WorkflowTerminated(reason="replaced")


@pytest.mark.parametrize(
    ("newest", "fields", "way"),
    [
        (CLOSED, {}, Way.BEGIN),
        (CLOSED, {"attach": True}, Way.LEAVE),
        (CLOSED, {"replace": REPLACE}, Way.BEGIN),
        (CLOSED, {"follows": "child-1"}, Way.BEGIN),
        (CLOSED, {"follows": "another"}, Way.LEAVE),
        (OPEN, {}, Way.DELIVER),
        (OPEN, {"attach": True}, Way.DELIVER),
        (OPEN, {"replace": REPLACE}, Way.REPLACE),
        (OPEN, {"replace": REPLACE, "attach": True}, Way.DELIVER),
        (OPEN, {"follows": "child-1"}, Way.LEAVE),
        (OPEN, {"follows": "child-1", "replace": REPLACE}, Way.LEAVE),
    ],
)
def test_a_creation_finds_its_way_past_the_newest_execution(newest, fields, way):
    assert rules.way_past(newest, r.Creation(started=started(run_id="other"), **fields)) is way


def test_the_same_execution_has_the_same_run_and_attempt():
    assert rules.is_same(instance(), started(execution_id="another"))
    assert not rules.is_same(instance(), started(attempt=2))
    assert not rules.is_same(instance(), started(run_id="other"))


def test_an_execution_ran_for_a_request_if_it_began_with_its_run():
    continuation = instance(run_id="second", generation=2, parent=PARENT)
    assert rules.first_run(instance()) == rules.first_run(continuation) == "run"
    assert rules.ran_for(instance(), started())
    assert rules.ran_for(instance(attempt=2), started())
    assert rules.ran_for(continuation, started())
    assert not rules.ran_for(instance(run_id="other", parent=replace(PARENT, first_run="other")), started())


@pytest.mark.parametrize(
    ("parent", "fields", "addressed"),
    [
        (None, {}, True),
        (None, {"run_id": "run"}, True),
        (None, {"run_id": "other"}, False),
        (None, {"key": "call"}, False),
        (PARENT, {"key": "call"}, True),
        (PARENT, {"key": "other"}, False),
        (PARENT, {"key": "call", "run_id": "other"}, False),
    ],
)
def test_a_message_is_for_the_run_and_the_child_that_it_names(parent, fields, addressed):
    message = Message(event=events.CancelRequested(), entity_id="child", **fields)
    assert rules.is_addressed(instance(parent=parent), message) is addressed


def test_a_child_is_started_if_its_id_is_free():
    assert rules.answer_child(request(), None, None, closed=False) is None
    assert rules.answer_child(request(), None, instance(run_id="other"), closed=True) is None


def test_a_child_that_ran_for_the_request_is_answered_as_started():
    ran = instance(Status.FAILED, execution_id="first")
    answer = rules.answer_child(request(), ran, instance(run_id="other", execution_id="newest"), closed=False)
    assert answer == events.ChildStarted(ref=2, execution_id="first")


def test_an_open_child_of_the_same_call_is_answered_as_started():
    ours = instance(run_id="other", execution_id="ours", parent=PARENT)
    answer = rules.answer_child(request(), None, ours, closed=False)
    assert answer == events.ChildStarted(ref=2, execution_id="ours")


def test_an_id_in_use_refuses_a_child():
    for parent in (None, replace(PARENT, key="other")):
        newest = instance(run_id="other", parent=parent)
        assert rules.answer_child(request(), None, newest, closed=False) == request().refused


def test_a_child_inherits_the_pause_of_the_tree_only():
    pauses = [rules.child_pause(pause) for pause in (None, r.Pause.ALONE, r.Pause.TREE)]
    assert pauses == [None, None, r.Pause.TREE]


def test_the_first_message_that_is_kept_is_the_answer():
    sent = [Message(event=events.ChildCompleted(ref=n), entity_id="parent", kept=n > 1) for n in (1, 2, 3)]
    assert rules.kept_answer(Outcome(messages=tuple(sent))) == sent[1].event
    assert rules.kept_answer(Outcome(messages=(sent[0],))) is None


def test_two_events_begin_a_scheduled_instance():
    kinds = (events.WorkflowBegun(), events.CancelRequested(), events.WorkflowResumed(), events.WorkflowPaused())
    assert [rules.begins(event) for event in kinds] == [True, True, False, False]


@pytest.mark.parametrize(
    ("before", "tree", "after"),
    [
        (None, False, r.Pause.ALONE),
        (None, True, r.Pause.TREE),
        (r.Pause.ALONE, False, None),
        (r.Pause.ALONE, True, r.Pause.TREE),
        (r.Pause.TREE, False, None),
        (r.Pause.TREE, True, None),
    ],
)
def test_a_pause_can_be_widened_but_not_narrowed(before, tree, after):
    assert rules.pause_after(before, events.WorkflowPaused(tree=tree)) is after


def test_a_settlement_names_its_promise():
    assert rules.settlement(events.PromiseResolved(ref=0), "p-1") == events.PromiseResolved(ref=0, promise_id="p-1")
    assert rules.settlement(events.CancelRequested(), "p-1") == events.CancelRequested()


@pytest.mark.parametrize(
    ("event", "overtakes"),
    [
        (events.ChildCompleted(ref=0), True),
        (events.ChildFailed(ref=0, failure=FAILURE), True),
        (events.PromiseResolved(ref=0), True),
        (events.ChildStarted(ref=2, execution_id="child-1"), False),
        (events.SignalReceived(name="s", id="1"), False),
        (events.CancelRequested(), False),
    ],
)
def test_ends_of_children_and_settlements_overtake_a_strict_commit(event, overtakes):
    assert rules.overtakes([Entry(1, events.CancelRequested()), Entry(2, event)]) is overtakes
    assert not rules.overtakes([])


def test_an_instance_that_was_begun_is_not_scheduled_again():
    statuses = (Status.SCHEDULED, Status.RUNNING, Status.DIVERGED)
    left = [rules.status_after(status, Outcome(status=Status.SCHEDULED)) for status in statuses]
    assert left == [Status.SCHEDULED, Status.RUNNING, Status.SCHEDULED]
    assert rules.status_after(Status.RUNNING, Outcome(status=Status.FAILED)) is Status.FAILED


def test_a_dead_letter_says_how_often_it_was_handed_out():
    note = rules.failure_note("ValueError: no")
    assert rules.instance_dead_letter(20, note) == (
        "handed out 20 times without a commit; the last error: ValueError: no"
    )
    assert rules.instance_dead_letter(3, rules.failure_note(None)) == "handed out 3 times without a commit"
    charge = ActivityRequest(ref=2, name="charge", queue="q", input=events.NULL, entity_id="e")
    assert rules.activity_dead_letter(charge, 20) == (
        "activity 'charge' (entry 2) was handed out 20 times without an answer"
    )


def activity(**fields: Any) -> ActivityRequest:
    return ActivityRequest(ref=2, name="n", queue="q", input=Raw(b'[{"starts":{}}]'), entity_id="i", **fields)


def test_a_claim_starts_the_prepared_entry_with_the_number_of_the_delivery() -> None:
    prepared = WorkStarted(item=2, step="s")
    assert rules.start_of(activity(starts=prepared), 3) == WorkStarted(item=2, step="s", attempt=3)
    assert rules.start_of(activity(), 3) is None


def test_a_request_has_its_prepared_entry_behind_the_ref_or_no_trace_of_it() -> None:
    """Functions in servers look for it there."""
    assert encode(activity(starts=WorkStarted(item=2, step="s"))).startswith(
        '{"ref":2,"starts":{"type":"work_started","item":2,"step":"s"},"name":"n",'
    )
    assert encode(activity()) == '{"ref":2,"name":"n","queue":"q","input":[{"starts":{}}],"entity_id":"i"}'
