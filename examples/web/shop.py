"""A shop with FastAPI: its own routes start workflows, and the whole HTTP API is mounted beside them.

Watch for: the shop has one process, one store and no other service. At /resurgam its operators find every order, its history,
signals and live events; they need an API key (`resurgam keys create`), because the shop does not say `keys=False`.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field

import resurgam.web
from resurgam import Context, Engine, SignalTimeout, activity, errors, workflow


class Order(BaseModel):
    """What is ordered, and its price."""

    id: str = Field(pattern=r"^o-\d+$")
    cents: int = Field(gt=0)


@activity
async def charge(order: Order) -> str:
    return f"{order.cents / 100:.2f} for {order.id}"


@workflow
async def checkout(ctx: Context, order: Order) -> str:
    if order.cents > 100_000:
        try:
            await ctx.listen("approve", timeout=86400)
        except SignalTimeout:
            return "refused"
    return await ctx.activity(charge, order)


engine = Engine(os.environ.get("STORE", "sqlite:///shop.db"))


@asynccontextmanager
async def opened(api: FastAPI) -> AsyncIterator[None]:
    async with engine:
        yield


api = FastAPI(title="Shop", lifespan=opened)


@api.post("/orders", status_code=202)
async def order(order: Order) -> dict[str, str]:
    handle = await engine.start(checkout, order, id=order.id, if_exists="attach")
    return {"id": handle.entity_id}


@api.get("/orders/{order_id}")
async def status(order_id: str) -> dict[str, str]:
    try:
        found = await engine.handle(order_id, workflow=checkout).describe()
    except errors.NotFound:
        raise HTTPException(404, f"there is no order {order_id}") from None
    return {"id": order_id, "status": found.status, "receipt": found.result or ""}


api.mount("/resurgam", resurgam.web.app(engine))

if __name__ == "__main__":
    uvicorn.run(api, port=int(os.environ.get("PORT", "8000")))
