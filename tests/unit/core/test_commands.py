"""The table of commands: every kind of durable call has one row, and the derived tables are consistent."""

import typing

import pytest

from resurgam.core import event as events
from resurgam.core.commands import ANSWERS, COMMANDS, COMMANDS_BY_TAG, CommandKind, Intent, address_of
from resurgam.core.event import AnyEvent
from resurgam.core.location import Location
from resurgam.runtime.context.context import Context
from resurgam.runtime.context.removed import Removed
from resurgam.runtime.context.saga import Saga

CLASSES = typing.get_args(AnyEvent)
EACH = pytest.mark.parametrize("kind", COMMANDS.values(), ids=lambda kind: kind.tag)


def test_every_event_that_is_a_command_has_exactly_one_row():
    assert set(COMMANDS) == {kind for kind in CLASSES if issubclass(kind, events.Command)}
    assert {tag: kind.event for tag, kind in COMMANDS_BY_TAG.items()} == {
        kind.tag: kind.event for kind in COMMANDS.values()
    }


@EACH
def test_an_intent_is_counted_under_the_type_of_its_kind(kind: CommandKind):
    assert Intent(kind.event).type == kind.type


def test_commands_are_counted_under_fixed_types():
    """Written out, because command ids such as ``Task(0)`` are part of histories."""
    assert {kind.event.__name__: kind.type for kind in COMMANDS.values()} == {
        "ActivityScheduled": "Task",
        "TimerStarted": "Timer",
        "OperationStarted": "Operation",
        "StateSet": "State",
        "StateCleared": "State",
        "StateRead": "Read",
        "TagsSet": "Tags",
        "ListenStarted": "Listen",
        "BranchStarted": "Branch",
        "RaceStarted": "Race",
        "LoopStarted": "Loop",
        "VersionChecked": "VersionCheck",
        "StepRemoved": "Removed",
        "ChildScheduled": "ChildWorkflow",
        "FlowScheduled": "Flow",
        "PromiseCreated": "Promise",
        "SignalSent": "Signal",
        "PromiseSettled": "Settlement",
        "MessagePublished": "Message",
        "SagaStepRegistered": "Saga",
    }


@EACH
def test_the_verb_of_a_kind_is_a_method_of_the_context(kind: CommandKind):
    assert hasattr(Saga if kind.event is events.SagaStepRegistered else Context, kind.verb)


@EACH
def test_a_call_can_be_removed_by_the_verb_that_made_it(kind: CommandKind):
    assert hasattr(Removed, kind.verb) or kind.event is events.StepRemoved


def test_every_answer_that_closes_belongs_to_exactly_one_command():
    """Except for the fate of a message, whether it is a signal or the settlement of a promise."""
    listed = [
        answer for kind in COMMANDS.values() for answer in kind.answers if kind.event is not events.PromiseSettled
    ]
    assert COMMANDS[events.PromiseSettled].answers == COMMANDS[events.SignalSent].answers
    on_the_way = {
        *(events.ActivityRetryScheduled, events.LoopCheckpointed, events.ChildStarted),
        *(events.ChildCancelRequested, events.SagaCompensationStarted),
    }
    expected = {kind for kind in CLASSES if issubclass(kind, events.Answer)} - on_the_way
    assert set(listed) == set(ANSWERS) == expected
    assert len(listed) == len(ANSWERS) == len(expected)


@EACH
def test_cancellations_and_timeouts_are_answers_of_their_own_command(kind: CommandKind):
    assert kind.cancelled is None or kind.cancelled in kind.answers
    assert kind.timed_out is None or kind.timed_out in kind.answers


def test_every_answer_that_cancels_is_recorded_by_the_cancelling_code_except_that_of_a_child():
    cancelling = {answer for answer in ANSWERS if answer.__name__.endswith("Cancelled")}
    recorded = {kind.cancelled for kind in COMMANDS.values() if kind.cancelled is not None}
    assert recorded == cancelling - {events.ChildCancelled}


@EACH
def test_a_kind_times_out_exactly_if_it_has_a_deadline(kind: CommandKind):
    assert (kind.timed_out is not None) == ("deadline" in kind.event.__struct_fields__)


@EACH
def test_only_kinds_with_answers_are_answered_by_something(kind: CommandKind):
    assert kind.answers or (kind.answered_by == "code" and not kind.late)


def test_answers_from_outside_find_a_child_by_its_location_and_a_promise_by_its_id():
    place = Location((1,), (2,))
    child = events.ChildScheduled(location=place, command="c", name="n", queue="q", entity_id="e", run_id="r")
    promise = events.PromiseCreated(location=place, command="c", name="n", promise_id="p")
    assert (address_of(child), address_of(promise)) == (str(place), "p")
    assert address_of(events.TimerStarted(location=place, command="c", deadline=1)) == ""
