"""An attempt in the simulated world is tried again exactly where a worker would try it again."""

import pytest
from msgspec import Raw

from resurgam import NonRetryable, Registry, RetryAfter
from resurgam.core import event as events
from resurgam.core.outcome import ActivityRequest
from resurgam.core.retry import RetryRule
from resurgam.testing.attempt import run_attempt
from resurgam.testing.simulated_store import Work

registry = Registry()


@registry.activity
async def price(order: int) -> int:
    return order


def work(input: bytes = b"[1]", rule: RetryRule | None = None) -> Work:
    request = ActivityRequest(
        ref=2, name="price", queue="default", input=Raw(input), entity_id="run/1", retry=rule or RetryRule()
    )
    return Work(request)


@pytest.mark.parametrize(
    ("mock", "given"),
    [
        (NonRetryable("no"), b"[1]"),
        (lambda order: "not a number", b"[1]"),
        (lambda order: order, b'["not a number"]'),
        (lambda order: order, b"[1, 2]"),
    ],
    ids=["NonRetryable", "a result that does not fit", "an argument that does not fit", "too many arguments"],
)
async def test_what_would_fail_again_is_final(mock, given):
    answer = await run_attempt(price, mock, work(given), 0)

    assert isinstance(answer, events.ActivityFailed)


@pytest.mark.parametrize("error", [ValueError("no"), RetryAfter(7)])
async def test_what_may_succeed_later_is_tried_again(error):
    answer = await run_attempt(price, error, work(rule=RetryRule(jitter=0)), 0)

    assert isinstance(answer, events.ActivityRetryScheduled)
    assert answer.next_at == (7000 if isinstance(error, RetryAfter) else 1000)


async def test_an_attempt_knows_itself():
    def shown(order: int) -> int:
        info = registry.activity.info()
        assert (info.name, info.workflow_id, info.idempotency_key) == ("price", "order-1", "run/1")
        registry.activity.heartbeat("still here")
        assert not registry.activity.cancelled()
        return info.attempt

    answer = await run_attempt(price, shown, work(), 0, "order-1")

    assert isinstance(answer, events.ActivityCompleted)
    assert answer.result == Raw(b"1")
