"""Promises are settled by their id, once."""

import asyncio

import httpx2

from resurgam import Context, Engine, Registry
from support.web import served


async def test_a_promise_is_settled_once_with_a_value_of_its_type_or_an_error() -> None:
    registry = Registry()

    @registry.workflow
    async def approval(ctx: Context) -> bool:
        return await ctx.promise("approved", type=bool)

    async with Engine("memory://", registry=registry) as engine, served(engine) as client:
        await engine.start(approval, id="a-1")
        await engine.start(approval, id="a-2")
        paths = [f"/promises/{await promise_of(client, one)}" for one in ("a-1", "a-2")]
        wrong = await client.post(paths[0], json={"value": "yes"})
        assert (wrong.status_code, wrong.json()["field"]) == (400, "body.value")
        assert (await client.post(paths[0], json={"value": True})).json()["first"] is True
        assert (await client.post(paths[0], json={"value": False})).json()["first"] is False
        assert await engine.handle("a-1").result()
        assert (await client.post(paths[1], json={"error": "too dear"})).json()["first"] is True
        ended = (await client.get("/workflows/a-2/result")).json()["error"]
        assert "too dear" in f"{ended['message']} {ended['cause']}"


async def promise_of(client: httpx2.AsyncClient, id: str) -> str:
    for _ in range(1000):
        for work in (await client.get(f"/workflows/{id}")).json()["pending"]:
            if work["kind"] == "promise":
                return str(work["entity_id"])
        await asyncio.sleep(0)  # the request may not have let the worker run
    raise AssertionError(id)


async def test_a_settlement_needs_a_value_or_an_error_and_a_promise() -> None:
    async with Engine("memory://", registry=Registry()) as engine, served(engine) as client:
        for body in ({}, {"value": 1, "error": "no"}):
            answer = await client.post("/promises/p", json=body)
            assert (answer.status_code, answer.json()["field"]) == (400, "body")
        assert (await client.post("/promises/p", json={"value": None})).status_code == 404
