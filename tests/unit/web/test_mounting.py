"""The application inside another program: its own paths, whatever the program is and wherever it is mounted."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from resurgam import Engine
from resurgam.web import app
from support.web import checkout_code


def in_fastapi(engine: Engine, at: str) -> Any:
    host = FastAPI()
    host.mount(at, app(engine, keys=False))
    return host


def in_starlette(engine: Engine, at: str) -> Any:
    return Starlette(routes=[Mount(at, app(engine, keys=False))])


@asynccontextmanager
async def opened(host: Any) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=host), base_url="http://localhost") as client:
        yield client


@pytest.mark.parametrize("mounted", [in_fastapi, in_starlette])
@pytest.mark.parametrize("at", ["/api", "/a b/ü"])
async def test_a_mounted_app_serves_its_routes_below_its_path(mounted: Any, at: str) -> None:
    engine = Engine("memory://", registry=checkout_code())
    host = mounted(engine, at)  # before the engine is open, as a module does
    async with engine, opened(host) as client:
        started = await client.post(f"{at}/workflows", json={"workflow": "checkout", "id": "a/b%2Fc"})
        assert started.status_code == 201, started.text
        found = await client.get(started.headers["location"])
        assert found.json()["entity_id"] == "a/b%2Fc"
        document = (await client.get(f"{at}/openapi.json")).json()
        [server] = document["servers"]
        assert (await client.get(f"{server['url']}/workflows")).status_code == 200
        assert (await client.get(f"{at}/nothing")).json()["code"] == "no_route"


async def test_a_mounted_app_wants_keys_unless_told_otherwise() -> None:
    engine = Engine("memory://", registry=checkout_code())
    host = Starlette(routes=[Mount("/api", app(engine))])
    async with engine, opened(host) as client:
        answer = await client.get("/api/workflows")
        assert (answer.status_code, answer.headers["content-type"]) == (401, "application/problem+json")
        assert (await client.get("/api/health")).status_code == 200
