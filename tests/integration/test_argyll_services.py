"""Services that were written for Argyll, behind steps that its clients registered: what the original got wrong."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from support.argyll_client import Served, argyll_served
from support.listening import listening

ZERO = "0001-01-01T00:00:00Z"
_ASYNC = {"id": "letter", "name": "Letter", "type": "async"}
HEADERS = ("argyll-flow-id", "argyll-step-id", "argyll-receipt-token")


def _step(url: str, parallelism: int, **http: str) -> dict[str, Any]:
    return {
        "id": "each",
        "name": "Each",
        "type": "sync",
        "attributes": {
            "n": {"role": "required", "type": "array", "required": {"for_each": True}},
            "square": {"role": "output", "type": "array"},
        },
        "http": {"endpoint": f"{url}/each", **{name: f"{url}{path}" for name, path in http.items()}},
        "work_config": {"parallelism": parallelism},
    }


@asynccontextmanager
async def _served_with(
    **services: Callable[[Request], Awaitable[Response]],
) -> AsyncIterator[tuple[Served, str]]:
    routes = [Route(f"/{name}", one, methods=["POST"]) for name, one in services.items()]
    async with listening(Starlette(routes=routes)) as url, argyll_served() as served:
        yield served, url


async def test_items_of_a_for_each_run_side_by_side_up_to_the_parallelism_of_the_step() -> None:
    """With the original every flow with a parallelism of 2 or more failed."""
    running, most, all_there = 0, 0, asyncio.Event()

    async def each(request: Request) -> Response:
        nonlocal running, most
        n = (await request.json())["n"]
        running += 1
        most = max(most, running)
        if running == 3:
            all_there.set()
        await all_there.wait()
        running -= 1
        return JSONResponse({"square": n * n})

    async with _served_with(each=each) as (served, url):
        await served.register(_step(url, 3))
        await served.start("f", "each", n=[list(range(7))])
        state = await served.ended("f")
    assert (state["status"], most) == ("completed", 3)
    execution = state["executions"]["each"]
    assert execution["outputs"]["square"] == [{"n": n, "square": n * n} for n in range(7)]
    assert [item["inputs"] for item in execution["work_items"].values()] == [{"n": n} for n in range(7)]


async def test_a_compensation_names_the_flow_the_step_and_the_receipt_of_what_it_undoes() -> None:
    """The original sent none of these headers with a compensation."""
    done: dict[int, dict[str, str]] = {}
    undone: list[tuple[Any, dict[str, str]]] = []
    told = asyncio.Event()

    async def each(request: Request) -> Response:
        n = (await request.json())["n"]
        if n == 2:
            return JSONResponse({"detail": "no twos"}, 422, media_type="application/problem+json")
        done[n] = {name: request.headers[name] for name in HEADERS}
        return JSONResponse({"square": n * n})

    async def undo(request: Request) -> Response:
        undone.append((await request.json(), {name: request.headers[name] for name in HEADERS}))
        told.set()
        return Response(status_code=204)

    async with _served_with(each=each, undo=undo) as (served, url):
        await served.register(_step(url, 1, compensate="/undo"))
        await served.start("f", "each", n=[[1, 2, 3]])
        state = await served.ended("f")
        await asyncio.wait_for(told.wait(), 30)
    assert state["error"].startswith("step each failed: ")
    assert "no twos" in state["error"]
    assert undone == [({"input": {"n": 1}, "output": {"square": 1}}, done[1])]
    assert (done[1]["argyll-flow-id"], done[1]["argyll-step-id"]) == ("f", "each")
    items = state["executions"]["each"]["work_items"]
    assert done[1]["argyll-receipt-token"] in items
    assert [item["inputs"]["n"] for item in items.values()] == [1, 2, 3]
    assert sorted(done) == [1]


async def test_an_async_step_of_a_child_flow_is_answered_by_its_own_webhook() -> None:
    """The id of a child flow has a slash, which its webhook address must survive."""
    asked: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def letter(request: Request) -> Response:
        asked.set_result(request.headers["argyll-webhook-url"])
        return Response(status_code=202)

    attributes = {"name": {"role": "required"}, "text": {"role": "output"}}
    async with _served_with(letter=letter) as (served, url):
        await served.engine.store.values.put("public-url", b"http://localhost")
        await served.register(
            {**_ASYNC, "attributes": attributes, "http": {"endpoint": f"{url}/letter"}},
            {"id": "outer", "name": "Outer", "type": "flow", "attributes": attributes, "flow": {"goals": ["letter"]}},
        )
        await served.start("f", "outer", name=["Ada"])
        webhook = await asyncio.wait_for(asked, 30)
        waiting = await served.flow("f")
        [item] = waiting["executions"]["outer"]["work_items"].values()
        assert (waiting["status"], item["status"], item["completed_at"]) == ("active", "active", ZERO)
        for _ in range(2):
            assert (await served.http.post(webhook, json={"text": "Dear Ada"})).status_code == 200
        state = await served.ended("f")
    assert (state["status"], state["attributes"]["text"][0]["value"]) == ("completed", "Dear Ada")
