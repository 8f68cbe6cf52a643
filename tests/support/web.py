"""A basket that can be asked over HTTP in every way, and a client of its server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

import httpx2
import msgspec

from resurgam import Context, Engine, Registry
from resurgam.flows import Step
from resurgam.web import app


def basket_code() -> Registry:
    """Return the code of a basket: signals fill it, a query counts it, an update removes, a promise pays for it."""
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context) -> str:
        return "packed"

    @registry.workflow
    async def basket(ctx: Context, owner: str) -> dict[str, Any]:
        items: list[str] = []

        @ctx.on_query("count")
        def count(times: int = 1) -> int:
            return len(items) * times

        @ctx.on_query("broken")
        def broken() -> None:
            raise TypeError("the handler is broken")

        @ctx.on_update("drop")
        async def drop(item: str) -> int:
            items.remove(item)
            return len(items)

        while (item := await ctx.listen("add", type=str)) != "done":
            items.append(item)
        if not items:
            raise ValueError("an empty basket")
        packed = await ctx.workflow(child)
        paid = ctx.promise("paid", type=int)
        ctx.set("owner", owner)
        return {"owner": owner, "items": items, "packed": packed, "paid": await paid}

    @registry.workflow
    async def moment(ctx: Context) -> datetime:
        return datetime(2026, 1, 2, tzinfo=UTC)

    return registry


@asynccontextmanager
async def served(engine: Engine, **options: Any) -> AsyncIterator[httpx2.AsyncClient]:
    """Serve an open engine to a client in this process, without keys."""
    options = {"keys": False, **options}
    transport = httpx2.ASGITransport(app=app(engine, **options))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


def checkout_code() -> Registry:
    """Return the code of the examples in the document of the API."""
    registry = Registry()

    @registry.workflow
    async def checkout(ctx: Context, order: Any = None) -> Any:
        items: list[Any] = []

        @ctx.on_query("total")
        def total() -> int:
            return len(items)

        @ctx.on_update("add")
        async def add(item: Any) -> int:
            items.append(item)
            return len(items)

        return await ctx.listen("approve")

    return registry


SHIP: Final = msgspec.convert(
    {
        "id": "ship",
        "name": "Ship an order",
        "type": "script",
        "attributes": {"order_id": {"role": "required"}, "tracking": {"role": "output"}},
        "script": {"language": "cel", "script": "{'tracking': order_id}"},
    },
    Step,
)
"""The goal of the examples in the document of the API."""
