"""Work items in the state of a flow, at moments that last too short to be met from outside."""

from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from resurgam.core import flow_event as fe
from resurgam.core.entry import Event, Failure
from resurgam.web.argyll.state import CANCELLED, flow_shape
from support.argyll_client import argyll_served, script_step

ZERO = "0001-01-01T00:00:00Z"
BEGUN = (
    fe.FlowActivated(),
    fe.StepStarted(step="run", inputs=Raw(b'{"value":1}'), first=1, items=(Raw(b"{}"),)),
)
ATTEMPT = fe.WorkStarted(item=1, step="run")
MISSED = fe.WorkNotCompleted(ref=1, step="run", failure=Failure(type="NotCompleted", message="HTTP 503"))
RETRY = fe.RetryScheduled(item=1, step="run", retry_count=1, next_retry_at=90_000)


async def shown_after(*entries: Event) -> dict[str, Any]:
    """Return the work item of a flow after these entries, each a second after the one before."""
    async with argyll_served(worker=False) as served:
        await served.register(script_step("run", "return {done = value}", "value", outputs=("done",)))
        await served.start("f", "run", value=[1])
        [first] = await served.engine.handle("f").history()
    log = [replace(entry, seq=seq, at=seq * 1000) for seq, entry in enumerate((first, *BEGUN, *entries), 1)]
    [item] = flow_shape(log)["executions"]["run"]["work_items"].values()
    return {name: bytes(value) if isinstance(value, Raw) else value for name, value in item.items()}


def second(number: int) -> str:
    return f"1970-01-01T00:0{number // 60}:{number % 60:02}.000Z"


WAITING = {"started_at": ZERO, "completed_at": ZERO, "next_retry_at": ZERO, "inputs": b"{}", "status": "pending"}


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ((), WAITING),
        ((ATTEMPT,), WAITING | {"status": "active", "started_at": second(4)}),
        (
            (ATTEMPT, MISSED, RETRY),
            WAITING
            | {"started_at": second(4), "completed_at": second(5), "next_retry_at": second(90)}
            | {"retry_count": 1, "error": "HTTP 503"},
        ),
        (
            (ATTEMPT, MISSED, RETRY, fe.WorkSucceeded(ref=1, step="run", outputs=Raw(b"{}"))),
            WAITING
            | {"status": "succeeded", "started_at": second(4), "completed_at": second(7), "outputs": b"{}"}
            | {"retry_count": 1, "error": "HTTP 503"},
        ),
        (
            (ATTEMPT, fe.DispatchDeferred(ref=1, step="run", next_at=60_000, reason="unhealthy")),
            WAITING | {"next_retry_at": second(60)},
        ),
        (
            (fe.WorkCancelled(ref=1, step="run"),),
            WAITING | {"status": "failed", "completed_at": second(4), "error": CANCELLED},
        ),
    ],
    ids=["handed over", "running", "waiting for a retry", "answered meanwhile", "deferred", "cancelled"],
)
async def test_a_work_item_is_shown_as_far_as_it_is(entries: tuple[Event, ...], expected: dict[str, Any]) -> None:
    assert await shown_after(*entries) == expected
