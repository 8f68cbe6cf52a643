"""The closed union of events: each round-trips through JSON, under a tag that never changes."""

import json
import re
import types
import typing

import msgspec
import pytest
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.event import AnyEvent, Failure, decode_event, decode_events, encode_event
from resurgam.core.flow_event import HealthStatus
from resurgam.core.location import Location
from resurgam.core.retry import RetryRule

TAGS = [
    "workflow_started",
    "workflow_completed",
    "workflow_failed",
    "workflow_cancelled",
    "workflow_terminated",
    "workflow_begun",
    "workflow_continued",
    "workflow_retried",
    "workflow_paused",
    "workflow_resumed",
    "workflow_diverged",
    "workflow_deactivated",
    "workflow_archiving",
    "workflow_archived",
    "signal_received",
    "signal_handled",
    "update_accepted",
    "update_completed",
    "update_rejected",
    "cancel_requested",
    "activity_scheduled",
    "activity_completed",
    "activity_failed",
    "activity_cancelled",
    "activity_retry_scheduled",
    "timer_started",
    "timer_fired",
    "timer_cancelled",
    "operation_started",
    "operation_completed",
    "operation_failed",
    "operation_cancelled",
    "state_set",
    "state_cleared",
    "state_read",
    "tags_set",
    "listen_started",
    "signals_consumed",
    "listen_timed_out",
    "listen_cancelled",
    "branch_started",
    "race_started",
    "race_decided",
    "loop_started",
    "loop_checkpointed",
    "loop_completed",
    "version_checked",
    "step_removed",
    "child_scheduled",
    "child_started",
    "child_cancel_requested",
    "child_completed",
    "child_failed",
    "child_cancelled",
    "flow_scheduled",
    "flow_answered",
    "promise_created",
    "promise_resolved",
    "promise_rejected",
    "promise_timed_out",
    "promise_cancelled",
    "promise_settled",
    "signal_sent",
    "signal_delivered",
    "signal_failed",
    "message_published",
    "saga_step_registered",
    "saga_compensation_started",
    "saga_closed",
    "flow_started",
    "flow_activated",
    "flow_completed",
    "flow_failed",
    "flow_cancelled",
    "flow_digest_updated",
    "flow_deactivated",
    "flow_archiving",
    "flow_archived",
    "step_started",
    "step_completed",
    "step_failed",
    "step_skipped",
    "attribute_set",
    "work_started",
    "work_succeeded",
    "work_failed",
    "work_not_completed",
    "work_cancelled",
    "work_acknowledged",
    "dispatch_deferred",
    "retry_scheduled",
    "comp_started",
    "comp_retry_scheduled",
    "comp_succeeded",
    "comp_failed",
    "catalog_started",
    "step_registered",
    "step_updated",
    "step_unregistered",
    "step_health_changed",
    "entity_deletion_requested",
    "entity_deleted",
]
"""Written out, because histories hold them: a listed tag may never be renamed or removed."""

CLASSES = typing.get_args(AnyEvent)
FAILURE = Failure(
    type="shop.Declined",
    message="no",
    bases=("builtins.Exception",),
    traceback="Traceback",
    notes=("n",),
    args=Raw(b'["no"]'),
    fields={"code": Raw(b"5")},
    cause=Failure(type="builtins.KeyError", message="'k'"),
    members=(Failure(type="builtins.OSError", message="o"),),
)
PARENT = events.Parent(entity_id="e", run_id="r", execution_id="x", location=Location((1,)), key="r/{1}", detached=True)
CARRIED = events.Carried(location=Location((1,)), kind="activity_scheduled", name="a", answer=Raw(b'{"seq":1}'))
CHILD = events.EarlierChild(location=Location((2,)), name="c", entity_id="e", run_id="r", by="x", at=1, open=False)
SAMPLES = {
    events.Parent: PARENT,
    RetryRule: RetryRule(max_attempts=3, non_retryable=("ValueError",)),
    tuple[events.Carried, ...]: (CARRIED,),
    tuple[events.EarlierChild, ...]: (CHILD,),
    int: 7,
    bool: True,
    str: "text",
    Raw: Raw(b'{"order":[1,2]}'),
    Location: Location((2,), (1, 1)),
    Failure: FAILURE,
    dict[str, str]: {"team": "red"},
    dict[str, str | None]: {"team": "red", "shop": None},
    dict[str, Raw]: {"n": Raw(b"1")},
    tuple[str, ...]: ("a", "b"),
    tuple[int, ...]: (3, 4),
    tuple[Raw, ...]: (Raw(b"1"), Raw(b"[2]")),
    HealthStatus: "unhealthy",
}


def sample_of(hint):
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    return SAMPLES[hint]


def full(kind):
    """Return an instance of *kind* with every field given."""
    return kind(**{field.name: sample_of(field.type) for field in msgspec.structs.fields(kind)})


def least(kind):
    """Return an instance of *kind* with its required fields only."""
    required = [field for field in msgspec.structs.fields(kind) if field.required]
    return kind(**{field.name: sample_of(field.type) for field in required})


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("build", [full, least])
def test_every_event_round_trips_through_json(kind, build):
    event = build(kind)
    again = decode_event(encode_event(event))
    assert type(again) is kind
    assert again == event
    assert decode_event(event.to_json()) == event


@pytest.mark.parametrize("kind", CLASSES)
def test_every_event_is_one_line_of_json_that_begins_with_its_type(kind):
    event = full(kind)
    text = event.to_json()
    assert "\n" not in text
    assert text.startswith(f'{{"type":"{event.type}",')
    given = {field.name for field in msgspec.structs.fields(kind) if sample_of(field.type) != field.default}
    assert set(json.loads(text)) == {"type", *given}


@pytest.mark.parametrize("kind", CLASSES)
def test_fields_that_an_event_does_not_need_are_not_written(kind):
    required = {field.name for field in msgspec.structs.fields(kind) if field.required}
    assert set(json.loads(least(kind).to_json())) == {"type", *required}


def test_event_tags_are_unique_and_fixed():
    assert [least(kind).type for kind in CLASSES] == TAGS
    assert len(set(TAGS)) == len(TAGS)


@pytest.mark.parametrize("kind", CLASSES)
def test_a_tag_is_the_name_of_its_class_in_snake_case(kind):
    assert least(kind).type == re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


def test_the_union_is_closed():
    """Every leaf of the class tree is in the union, and nothing else is."""

    def leaves(kind):
        # Other tests define kinds of their own.
        below = [sub for sub in kind.__subclasses__() if sub.__module__.startswith("resurgam.core.")]
        return {leaf for sub in below for leaf in leaves(sub)} if below else {kind}

    assert leaves(events.Event) == set(CLASSES)


def test_the_json_of_a_command_is_readable_by_any_tool():
    event = events.ActivityScheduled(
        seq=2,
        at=1000,
        location=Location((2,), (1, 1)),
        command="Task(0)",
        name="charge",
        queue="default",
        digest="ab12",
        input=Raw(b'[{"sku":"book","quantity":2}]'),
    )
    assert json.loads(event.to_json()) == {
        "type": "activity_scheduled",
        "seq": 2,
        "at": 1000,
        "location": "{2, 1.1}",
        "command": "Task(0)",
        "name": "charge",
        "queue": "default",
        "digest": "ab12",
        "input": [{"sku": "book", "quantity": 2}],
    }


def test_a_failure_is_readable_in_the_json():
    text = events.WorkflowFailed(seq=3, at=5, failure=Failure(type="builtins.KeyError", message="'k'")).to_json()
    assert text == '{"type":"workflow_failed","seq":3,"at":5,"failure":{"type":"builtins.KeyError","message":"\'k\'"}}'


def test_unknown_fields_are_ignored():
    event = decode_event('{"type":"timer_fired","seq":3,"ref":2,"invented_later":true}')
    assert event == events.TimerFired(seq=3, ref=2)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ('{"type":"timer_exploded"}', "Invalid value 'timer_exploded' - at `$.type`"),
        ('{"type":"timer_fired"}', "Object missing required field `ref`"),
        ('{"type":"activity_scheduled","location":"{1}","command":"Task(0)","name":"a"}', "required field `queue`"),
        ('{"seq":1}', "Object missing required field `type`"),
        ('{"type":"timer_fired","ref":"x"}', "Expected `int`, got `str` - at `$.ref`"),
        (
            '{"type":"branch_started","command":"c","location":"1.1"}',
            "a location must be text such as {2, 1.1}, got '1.1'",
        ),
        ('{"type":"branch_started","command":"c","location":"{1.0}"}', "must not end in 0"),
        (
            '{"type":"branch_started","command":"c","location":5}',
            "a location must be text such as {2, 1.1}, got 5 - at `$.location`",
        ),
        ("[]", "Expected `object`, got `array`"),
        ("not json", "JSON is malformed"),
        ('{"type":"timer_fired"', "truncated"),
        (b"\xff\xfe", "JSON is malformed"),
        (b'{"type":"state_cleared","command":"c","location":"{1}","name":"\xff"}', "utf-8"),
        ("", "truncated"),
    ],
)
def test_invalid_events_are_refused_with_the_reason(data, reason):
    with pytest.raises(ValueError) as caught:
        decode_event(data)
    shown = data if isinstance(data, str) else data.decode(errors="replace")
    assert str(caught.value).startswith("not an event of this version: ")
    assert reason in str(caught.value)
    assert str(caught.value).endswith(shown)


def log_of(count: int) -> list[str]:
    kinds = (
        lambda seq: events.BranchStarted(seq=seq, location=Location((seq,)), command="c", name='a "name", [x]'),
        lambda seq: events.ActivityCompleted(seq=seq, ref=seq - 1, result=Raw(b'[{"a":1},{}]')),
    )
    return [encode_event(kinds[seq % 2](seq)).decode() for seq in range(1, count + 1)]


@pytest.mark.parametrize("count", [0, 1, 499, 500, 501, 1200])
def test_a_log_is_decoded_by_batches_as_it_is_one_by_one(count):
    texts = log_of(count)
    assert list(decode_events(texts)) == [decode_event(text) for text in texts]


@pytest.mark.parametrize("broken", ["not json", "", "{}", '{"type":"timer_fired"', log_of(1)[0] + "," + log_of(1)[0]])
@pytest.mark.parametrize("at", [0, 3, 499, 500, 700])
def test_a_log_is_decoded_up_to_the_first_event_that_cannot_be_decoded(broken, at):
    texts = log_of(701)
    texts[at] = broken
    found = []
    with pytest.raises(ValueError, match="not an event of this version"):
        found.extend(decode_events(texts))
    assert [event.seq for event in found] == [*range(1, at + 1)]


def test_the_message_about_an_invalid_event_is_truncated():
    with pytest.raises(ValueError) as caught:
        decode_event("x" * 10_000)
    assert str(caught.value).endswith(": " + "x" * 200)


def test_an_event_with_an_unsupported_field_is_not_encoded():
    with pytest.raises(TypeError) as caught:
        encode_event(events.TimerFired(ref=object()))
    assert str(caught.value) == "event fields must be JSON values or locations, got object"


def test_events_are_immutable():
    with pytest.raises(AttributeError):
        events.TimerFired(ref=1).ref = 2
