"""The text of each error, and the data it carries."""

import pytest

from resurgam.core import errors
from resurgam.core.location import Location
from resurgam.core.outcome import ActivityRequest, Outcome
from resurgam.core.retry import RetryRule
from resurgam.core.state import Status


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


DIVERGED = {"code_value": "ship", "history_value": "charge", "event_seq": 7}


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (errors.WorkflowFailed("order", "o-1"), "workflow 'order' (o-1) failed"),
        (caused(errors.WorkflowFailed("order", "o-1"), KeyError("k")), "workflow 'order' (o-1) failed: KeyError: 'k'"),
        (errors.WorkflowCancelled("order", "o-1"), "workflow 'order' (o-1) was cancelled"),
        (errors.ActivityFailed("charge", 1), "activity 'charge' failed after 1 attempt"),
        (
            caused(
                errors.WorkflowFailed("order", "o-1"),
                caused(errors.ActivityFailed("charge", 3), ValueError("declined")),
            ),
            (
                "workflow 'order' (o-1) failed: ActivityFailed: activity 'charge' failed after 3 attempts: "
                "ValueError: declined"
            ),
        ),
        (caused(errors.OperationFailed("read"), ValueError()), "operation 'read' failed: ValueError"),
        (
            caused(errors.OperationFailed("read"), errors.RemoteError("shop.Gone", "gone")),
            "operation 'read' failed: shop.Gone: gone",
        ),
        (errors.SignalTimeout(("pay",)), "no signal 'pay' arrived in time"),
        (errors.SignalTimeout(("pay", "cancel")), "no signal 'pay' or 'cancel' arrived in time"),
        (
            errors.WorkflowTimeout("order", "o-1", 90.0),
            "workflow 'order' (o-1) did not end within its timeout of 90 s",
        ),
        (errors.ActivityCancelled("charge"), "activity 'charge' was cancelled"),
        (
            caused(errors.ChildWorkflowFailed("ship", "s-1"), ValueError("lost")),
            "child workflow 'ship' (s-1) failed: ValueError: lost",
        ),
        (errors.ChildWorkflowCancelled("ship", "s-1"), "child workflow 'ship' (s-1) was cancelled"),
        (caused(errors.PromiseRejected("pay"), Exception("no")), "promise 'pay' was rejected: Exception: no"),
        (errors.PromiseTimeout("pay"), "promise 'pay' was not settled in time"),
        (
            caused(errors.SignalFailed("o-2", "pay"), errors.NotFound("gone")),
            "signal 'pay' did not reach workflow 'o-2': NotFound: gone",
        ),
        (caused(errors.UpdateRejected("add"), ValueError("full")), "update 'add' was rejected: ValueError: full"),
        (
            errors.PayloadTooLarge("signal 'pay'", 3000, 2048),
            (
                "signal 'pay': 3,000 bytes exceed the limit of 2,048; store the value elsewhere and pass a reference to "
                "it, or raise max_payload"
            ),
        ),
        (errors.ContinueAsNew((1, 2)), "the workflow continues as new with 2 arguments; do not catch this"),
        (errors.RemoteError("shop.Gone", "gone", "Traceback"), "gone"),
        (errors.SerializationError("order.lines[2]", "no"), "order.lines[2]: no"),
        (errors.RetryAfter(1.5), "retry after 1.5 s"),
        (errors.RetryAfter(60, "busy"), "busy"),
        (
            errors.HistoryDiverged(Location((2,)), "Task(1)", "name", **DIVERGED),
            "Task(1) at {2}: the code has name 'ship', entry 7 of the history has 'charge'",
        ),
        (
            errors.HistoryDiverged(Location((2,)), "Task(1)", "name", **DIVERGED, source="shop.py:5"),
            "Task(1) at {2} (shop.py:5): the code has name 'ship', entry 7 of the history has 'charge'",
        ),
        (
            errors.LatentHistory(Location((2,), (1,)), "Task(1)", "name", **DIVERGED),
            "the code of scope {2} ended, but its history continues with Task(1) 'charge' at {2, 1} (entry 7)",
        ),
    ],
)
def test_errors_have_the_expected_text(error, text):
    assert str(error) == text


def test_a_cause_is_what_the_error_was_raised_from():
    cause = KeyError("k")
    assert caused(errors.ActivityFailed("charge", 1), cause).cause is cause
    assert errors.ActivityFailed("charge", 1).cause is None


def test_errors_keep_their_data_in_fields():
    error = errors.HistoryDiverged(Location((2,)), "Task(1)", "name", **DIVERGED, source="s")
    assert (error.location, error.command, error.field) == (Location((2,)), "Task(1)", "name")
    assert (error.code_value, error.history_value, error.event_seq, error.source) == ("ship", "charge", 7, "s")
    assert errors.RetryAfter(1.5).pause_ms == 1500
    assert errors.RetryAfter(-1).pause_ms == 0


@pytest.mark.parametrize(
    ("kind", "also"),
    [
        (errors.SignalTimeout, TimeoutError),
        (errors.ResultTimeout, TimeoutError),
        (errors.DefinitionError, TypeError),
    ],
)
def test_some_errors_derive_from_builtin_exceptions(kind, also):
    assert issubclass(kind, also)
    assert issubclass(kind, errors.ResurgamError)


@pytest.mark.parametrize("kind", [errors.Evicted, errors.HistoryDiverged, errors.LatentHistory])
def test_control_flow_is_not_caught_by_except_exception(kind):
    assert not issubclass(kind, Exception)


def test_a_caused_error_without_a_summary_is_a_bug():
    with pytest.raises(NotImplementedError):
        str(errors._Caused())


def test_an_outcome_is_empty_by_default():
    assert Outcome() == Outcome(
        events=(), consumed=(), activities=(), withdrawals=(), status=Status.RUNNING, deactivated=False, wake_at=None
    )
    request = ActivityRequest(ref=2, name="a", queue="q", input=b"[]", entity_id="e")
    assert (request.retry, request.timeout) == (RetryRule(), None)


def test_a_continuation_carries_its_arguments_and_cannot_be_caught_by_mistake():
    error = errors.ContinueAsNew((1, "two"), "drop")

    assert error.args == (1, "two")
    assert error.signals == "drop"
    assert errors.ContinueAsNew().signals == "carry"
    assert not isinstance(error, Exception)


def test_timeouts_derive_from_timeout_error():
    assert isinstance(errors.WorkflowTimeout("order", "o-1", 1), TimeoutError)
    assert isinstance(errors.PromiseTimeout("pay"), TimeoutError)
