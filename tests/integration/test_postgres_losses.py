"""Whatever request or answer of the Postgres store is lost on the wire: runs end as if nothing had happened."""

import asyncio
from collections import Counter

import pytest

from resurgam import Context, Engine, Registry
from support.postgres import fresh_url
from support.wire import proxied

EVERY = 7
"""Each run of the suite tries every seventh place; the long one tries them all."""

PLACES = 42
"""More than the round trips of a run."""


class Shop:
    """A workflow with steps, a child, a signal and an answer, and how often its activities ran."""

    def __init__(self):
        self.ran = Counter()
        self.registry = Registry()

        @self.registry.activity
        async def charge(order, n):
            self.ran[order, n] += 1
            return n

        @self.registry.workflow
        async def parcel(ctx: Context, order: str) -> int:
            return await ctx.activity(charge, order, 9)

        @self.registry.workflow
        async def buy(ctx: Context, order: str) -> list:
            paid = [await ctx.activity(charge, order, n) for n in range(3)]
            child = await ctx.workflow(parcel, order, id=f"{order}-parcel")
            paid += await asyncio.gather(*(ctx.activity(charge, order, n) for n in (3, 4)))
            return [*paid, child, await ctx.listen("go")]


async def run(url, shop, order):
    """Run an order to its end; return its result and the types of its entries."""
    async with Engine(url, registry=shop.registry) as engine:
        handle = await engine.start("buy", order, id=order)
        await handle.signal("go", "now")
        result = await asyncio.wait_for(handle.result(), 60)
        return result, sorted(event.type for event in await handle.history())


@pytest.mark.parametrize("lost", ["lose_requests", "lose_replies"])
@pytest.mark.parametrize(
    "place", [pytest.param(n, marks=[pytest.mark.long] if n % EVERY else []) for n in range(PLACES)]
)
async def test_a_run_ends_as_if_nothing_had_been_lost(lost, place):
    shop = Shop()
    async with proxied(fresh_url()) as (wire, url):
        undisturbed = await run(url, shop, "first")
        left = iter(range(place))
        wire.when = lambda _: next(left, None) is None
        setattr(wire, lost, 1)
        assert await run(url, shop, "second") == undisturbed
        assert set(shop.ran.values()) == {1}
