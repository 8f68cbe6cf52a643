"""`Engine.list`: which executions a page holds, and which filters are refused."""

from datetime import UTC, datetime, timedelta

import pytest

from resurgam import Context, Registry, RetryPolicy
from resurgam.core import event as events
from resurgam.core.failure import capture, root_type
from resurgam.errors import ActivityFailed, ChildWorkflowFailed, RemoteError, WorkflowFailed
from resurgam.testing import Environment

registry = Registry()


class CardDeclined(Exception):
    pass


@registry.activity(retry=RetryPolicy(max_attempts=1))
async def charge(order: str) -> None:
    raise CardDeclined(order)


@registry.workflow
async def pay(ctx: Context, order: str) -> None:
    await ctx.activity(charge, order)


@registry.workflow
async def checkout(ctx: Context, order: str) -> None:
    await ctx.workflow(pay, order, id=f"{order}-pay")


@registry.workflow(retry=RetryPolicy(max_attempts=2, initial_interval=60, jitter=0))
async def look_up(ctx: Context) -> None:
    raise LookupError("nothing there")


@registry.workflow
async def greet(ctx: Context, name: str) -> str:
    return f"Hello, {name}!"


async def ids(env, **filters):
    return [one.entity_id for one in (await env.engine.list(**filters)).instances]


async def test_a_failure_is_listed_by_the_type_of_its_root_cause():
    async with Environment(registry=registry) as env:
        with pytest.raises(WorkflowFailed) as failed:
            await env.engine.execute(checkout, "o-1", id="o-1")
        assert isinstance(failed.value.cause, ChildWorkflowFailed)
        await env.engine.execute(greet, "Ada", id="g-1")

        assert sorted(await ids(env, failure="CardDeclined")) == ["o-1", "o-1-pay"]
        assert await ids(env, failure="CardDeclined", name="checkout") == ["o-1"]
        assert await ids(env, failure="CardDeclined", parent="o-1") == ["o-1-pay"]
        assert await ids(env, failure="ActivityFailed") == []


async def test_each_attempt_has_its_failure_and_only_the_newest_is_listed_if_asked():
    async with Environment(registry=registry) as env:
        await env.start(look_up, id="l-1")
        await env.advance(timedelta(seconds=1))
        assert await ids(env, newest_only=True, failure="LookupError") == []
        assert await ids(env, newest_only=True, status="running") == ["l-1"]
        await env.advance(timedelta(minutes=2))

        attempts = (await env.engine.list(failure="LookupError")).instances
        assert sorted((one.attempt, one.status) for one in attempts) == [(1, "failed"), (2, "failed")]
        [newest] = (await env.engine.list(newest_only=True)).instances
        assert newest.attempt == 2


async def test_a_list_holds_what_was_created_from_since_and_before_until():
    async with Environment(registry=registry) as env:
        for name in ("a", "b", "c"):
            await env.engine.execute(greet, name, id=name)
            await env.advance(timedelta(hours=1))
        [_, second, _] = (await env.engine.list()).instances
        moment = datetime.fromtimestamp(second.created_at / 1000, UTC)

        assert await ids(env, since=moment) == ["c", "b"]
        assert await ids(env, until=moment) == ["a"]
        assert await ids(env, since=moment, until=moment + timedelta(milliseconds=1)) == ["b"]


@pytest.mark.parametrize(
    ("filters", "kind", "text"),
    [
        ({"failure": "builtins.ValueError"}, ValueError, "without its module, got 'builtins.ValueError'; use 'ValueError'"),
        ({"failure": ""}, ValueError, "failure must be a non-empty string, got ''"),
        ({"until": datetime.fromisoformat("2026-01-01")}, ValueError, "until must have a time zone, got 2026-01-01T00:00:00"),
        ({"since": "2h"}, TypeError, "since must be a datetime with a time zone, got '2h'"),
    ],
)  # fmt: skip
async def test_a_filter_that_cannot_match_is_refused(filters, kind, text):
    async with Environment(registry=registry) as env:
        with pytest.raises(kind, match=text):
            await env.engine.list(**filters)


def test_the_root_type_of_a_failure_is_a_bare_name():
    error = ActivityFailed("charge", 1)
    assert root_type(capture(error)) == "ActivityFailed"
    error.__cause__ = CardDeclined("o-1")
    assert root_type(capture(error)) == "CardDeclined"
    error.__cause__ = RemoteError("shop.errors.OutOfStock", "none left", "")
    assert root_type(capture(error)) == "OutOfStock"
    assert root_type(events.Failure(type="DETERMINISM_VIOLATION", message="no")) == "DETERMINISM_VIOLATION"
