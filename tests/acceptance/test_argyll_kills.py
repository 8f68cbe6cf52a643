"""The server is killed while a service works for it. The next one takes up its flows, and starts new ones at once."""

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from resurgam import Engine, Registry
from support.argyll_client import script_step
from support.listening import listening


@asynccontextmanager
async def _serving(store: str, port: int) -> AsyncIterator[str]:
    """Run `resurgam serve` in a process of its own; kill it at the end, without a warning."""
    command = ("-m", "resurgam", "serve", "--port", str(port), "--store", store, "--json")
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield json.loads(await asyncio.wait_for(process.stdout.readline(), 30))["url"]
    finally:
        process.kill()
        await process.wait()


async def test_the_first_start_after_a_kill_succeeds_and_an_accepted_call_is_not_repeated(tmp_path: Path) -> None:
    """With the original the first start after a kill died, and a call that only waited was made again."""
    store = f"sqlite:///{tmp_path / 'flows.db'}"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    calls: asyncio.Queue[str] = asyncio.Queue()

    async def letter(request: Request) -> JSONResponse:
        await calls.put(request.headers["argyll-webhook-url"])
        return JSONResponse({}, 202)

    async with listening(Starlette(routes=[Route("/letter", letter, methods=["POST"])])) as services:
        async with _serving(store, port) as url, httpx2.AsyncClient(base_url=url) as client:
            for step in _steps(services):
                assert (await client.post("/engine/step", json=step)).status_code == 201
            await client.post("/engine/flow", json={"id": "before", "goals": ["letter"], "init": {"name": ["Ada"]}})
            webhook = await asyncio.wait_for(calls.get(), 30)
            await _acknowledged(client, "before")
        async with (
            _serving(store, port) as url,
            httpx2.AsyncClient(base_url=url) as client,
            Engine(store, registry=Registry(), worker=False) as engine,
        ):
            first = await client.post("/engine/flow", json={"id": "after", "goals": ["double"], "init": {"value": [7]}})
            assert (first.status_code, first.json()["flow_id"]) == (201, "after")
            assert await engine.handle("after").result(timeout=30) == {"result": 14}
            assert (await client.post(webhook, json={"text": "Dear Ada"})).status_code == 200
            assert await engine.handle("before").result(timeout=30) == {"text": "Dear Ada"}
    assert calls.empty()


def _steps(services: str) -> list[dict[str, Any]]:
    letter = {"endpoint": f"{services}/letter"}
    attributes = {"name": {"role": "required"}, "text": {"role": "output"}}
    return [
        script_step("double", "return {result = value * 2}", "value", outputs=("result",)),
        {"id": "letter", "name": "Letter", "type": "async", "attributes": attributes, "http": letter},
    ]


async def _acknowledged(client: httpx2.AsyncClient, flow_id: str) -> None:
    """Wait until the acknowledgement of a call is recorded."""
    while True:
        events = (await client.get(f"/engine/flow/{flow_id}/events")).json()["events"]
        if any(event["type"] == "work_acknowledged" for event in events):
            return
        await asyncio.sleep(0.05)
