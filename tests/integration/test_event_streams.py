"""Event streams over stores that several engines have opened by themselves, as in several processes."""

import random
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from resurgam import Context, Engine, Registry
from resurgam.web import app
from support import postgres, redis
from support.sse import events_of

registry = Registry()


@registry.activity
async def double(x: int) -> int:
    return 2 * x


@registry.workflow
async def work(ctx: Context, x: int) -> int:
    for _ in range(3):
        x = await ctx.activity(double, x)
    return x


@pytest.fixture(params=["sqlite", "redis", "redis-cluster", "postgres"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    if request.param == "postgres":
        async with postgres.emptied_url() as found:
            yield found
    else:
        make: dict[str, Any] = {"redis": redis.fresh_url, "redis-cluster": redis.fresh_cluster_url}
        yield make.get(request.param, lambda: f"sqlite:///{tmp_path}/events.db")()


async def test_events_of_every_engine_arrive_once_and_in_order_over_any_reconnect(url: str) -> None:
    """Two servers, each with an engine that runs workflows; the client changes between them at drawn points."""
    chance = random.Random(7)
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(Engine(url, registry=registry)) for _ in range(2)]
        servers = [app(engine, keys=False) for engine in engines]
        async with events_of(servers[0]) as client:
            cursor = client.cursor
        handles = [await engines[number % 2].start(work, number, id=f"order-{number}") for number in range(12)]
        seen: defaultdict[str, list[int]] = defaultdict(list)
        ended = 0
        while ended < len(handles):
            async with events_of(chance.choice(servers), last_id=cursor) as client:
                events = await client.has(1)
                received = events[: chance.randint(1, len(events))]
                cursor = client.ids[len(received) - 1]
            for event in received:
                seen[event["entity_id"]].append(event["seq"])
                ended += event["type"] == "workflow_deactivated"
        expected = {handle.entity_id: [event.seq for event in await handle.history()] for handle in handles}
        assert seen == expected
        async with events_of(servers[1], [("after", ""), ("follow", "false"), ("instance", "order-5")]) as client:
            await client.until(lambda: client.ended)
            assert [event["seq"] for event in client.events] == expected["order-5"]
