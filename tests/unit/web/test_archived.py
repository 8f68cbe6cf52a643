"""Archived workflows and flows over HTTP: with the archive as before, without it as a row and a 404."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from resurgam import Context, Engine, Registry
from resurgam.flows.steps import StepDecorator
from resurgam.runtime.system import SystemClock
from resurgam.store.memory.store import MemoryStore
from support.web import served


def code() -> Registry:
    registry = Registry()

    @registry.workflow
    async def brief(ctx: Context, text: str) -> str:
        return text

    @StepDecorator(registry)
    def ship(order_id: str) -> str:
        return f"{order_id} shipped"

    return registry


@asynccontextmanager
async def archived(store: Any, folder: Path, *, known: bool) -> AsyncIterator[httpx2.AsyncClient]:
    """Serve a store with an archived workflow and an archived flow, by an engine that knows the archive or not."""
    async with Engine(store, registry=code(), archive=folder) as engine:
        await engine.execute("brief", "hello", id="b-1")
        await (await engine.start_flow(["ship"], {"order_id": "o-1"}, id="f-1")).result()
        assert [done.executions async for done in engine.archiver(-60_000).units()] == [1, 2]
    async with Engine(store, registry=code(), archive=folder if known else None) as engine, served(engine) as client:
        yield client


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(SystemClock(), lease=10_000)


async def test_what_is_archived_is_served_as_before(store: MemoryStore, tmp_path: Path) -> None:
    async with archived(store, tmp_path, known=True) as client:
        shown = (await client.get("/workflows/b-1")).json()
        assert (shown["status"], shown["result"], shown["input"]) == ("completed", "hello", ["hello"])
        assert shown["archived"].startswith("file://")
        assert (await client.get("/workflows/b-1/result")).json()["result"] == "hello"
        history = (await client.get("/workflows/b-1/history")).json()["entries"]
        assert [entry["event"]["type"] for entry in history][-2:] == ["workflow_deactivated", "workflow_archiving"]
        assert (await client.get("/flows/f-1")).json()["status"] == "completed"
        assert (await client.get("/workflows/b-1/tree")).status_code == 200
        listed = (await client.get("/workflows")).json()["workflows"]
        assert [one["archived"] is not None for one in listed] == [True]


async def test_without_the_archive_its_place_is_told(store: MemoryStore, tmp_path: Path) -> None:
    async with archived(store, tmp_path, known=False) as client:
        shown = (await client.get("/workflows/b-1")).json()
        assert (shown["status"], shown["result"]) == ("completed", None)
        for path in ("/workflows/b-1/history", "/workflows/b-1/result", "/flows/f-1", "/workflows/b-1/tree"):
            answer = await client.get(path)
            assert answer.status_code == 404, (path, answer.text)
            assert "is archived in file://" in answer.json()["detail"], path
