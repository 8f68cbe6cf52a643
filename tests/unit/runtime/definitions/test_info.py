"""The identity of a running attempt and its heartbeat, without a worker."""

import asyncio
import contextvars
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import Raw

from resurgam import activity, errors
from resurgam.runtime.definitions.info import ActivityInfo, enter_activity, read_details

INFO = ActivityInfo(name="pay", entity_id="e", execution_id="e#2", workflow_id="w", attempt=2, queue="q", details=[1])


class Told:
    def __init__(self) -> None:
        self.info = INFO
        self.max_payload = 100
        self.beats: list[Raw | None] = []
        self.over = False

    def cancelled(self) -> bool:
        return self.over

    def beat(self, details: Raw | None) -> None:
        self.beats.append(details)


@pytest.fixture
def attempt():
    return Told()


def inside(attempt, function, *args) -> Any:
    context = contextvars.copy_context()
    context.run(enter_activity, attempt)
    return context.run(function, *args)


@pytest.mark.parametrize("verb", ["info", "heartbeat", "cancelled"])
def test_activity_functions_require_a_running_activity(verb):
    with pytest.raises(RuntimeError, match=rf"activity\.{verb}\(\) must be called inside an activity"):
        getattr(activity, verb)()


def test_an_attempt_knows_its_identity(attempt):
    info = inside(attempt, activity.info)
    assert info is INFO
    assert (info.idempotency_key, info.details) == ("e", [1])


def test_details_are_encoded_at_the_heartbeat(attempt):
    rows = [1, 2]
    inside(attempt, activity.heartbeat, rows)
    rows.append(3)
    inside(attempt, activity.heartbeat)
    inside(attempt, activity.heartbeat, {"at": datetime(2026, 1, 1, tzinfo=UTC)})
    first, second, third = attempt.beats
    assert (read_details(first), second) == ([1, 2], None)
    assert read_details(third) == {"at": datetime(2026, 1, 1, tzinfo=UTC)}
    assert read_details(None) is None


def test_details_without_a_json_form_fail_the_heartbeat(attempt):
    with pytest.raises(errors.SerializationError, match=r"heartbeat of activity 'pay'\['rows'\]"):
        inside(attempt, activity.heartbeat, {"rows": object()})
    attempt.over = True
    with pytest.raises(errors.SerializationError):
        inside(attempt, activity.heartbeat, object())
    assert attempt.beats == []


def test_a_cancelled_attempt_gets_cancelled_error_at_its_heartbeat(attempt):
    assert inside(attempt, activity.cancelled) is False
    attempt.over = True
    assert inside(attempt, activity.cancelled) is True
    for _ in range(2):
        with pytest.raises(asyncio.CancelledError, match="activity 'pay' was cancelled, timed out, or lost its lease"):
            inside(attempt, activity.heartbeat, 1)
    assert attempt.beats == []


def test_details_larger_than_max_payload_fail_the_heartbeat(attempt):
    with pytest.raises(
        errors.PayloadTooLarge, match=r"heartbeat of activity 'pay': 102 bytes exceed the limit of 100;"
    ):
        inside(attempt, activity.heartbeat, "x" * 100)
    assert attempt.beats == []
    inside(attempt, activity.heartbeat, "x" * 98)
    assert len(attempt.beats) == 1
