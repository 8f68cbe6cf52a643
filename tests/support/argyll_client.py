"""A client of the original's routes, and the engine behind them, in one process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx2

from resurgam import Engine, Registry
from resurgam.errors import ResurgamError
from resurgam.web import app


@dataclass(frozen=True)
class Served:
    """An engine, and a client of its routes."""

    engine: Engine
    http: httpx2.AsyncClient

    async def register(self, *steps: dict[str, Any]) -> None:
        """Register steps that are not there."""
        for step in steps:
            answer = await self.http.post("/engine/step", json=step)
            assert answer.status_code == 201, answer.text

    async def start(self, flow_id: str, *goals: str, **init: list[Any]) -> httpx2.Response:
        """Start a flow."""
        return await self.http.post("/engine/flow", json={"id": flow_id, "goals": goals, "init": init})

    async def ended(self, flow_id: str) -> dict[str, Any]:
        """Return the state of a flow once its outcome is decided."""
        with suppress(ResurgamError):
            await self.engine.handle(flow_id).result(timeout=30)
        return await self.flow(flow_id)

    async def flow(self, flow_id: str) -> dict[str, Any]:
        """Return the state of a flow."""
        answer = await self.http.get(f"/engine/flow/{flow_id}")
        assert answer.status_code == 200, answer.text
        shape: dict[str, Any] = answer.json()
        return shape


@asynccontextmanager
async def argyll_served(
    *, worker: bool = True, registry: Registry | None = None, **options: Any
) -> AsyncIterator[Served]:
    """Serve an engine, without code unless a registry is given, to a client in the same process; by default without keys."""
    async with Engine("memory://", registry=registry or Registry(), worker=worker) as engine:
        transport = httpx2.ASGITransport(app=app(engine, **{"keys": False, **options}))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield Served(engine, client)


def script_step(step_id: str, script: str, *inputs: str, outputs: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    """Return a step in Lua, as a client sends it."""
    attributes: dict[str, Any] = {name: {"role": "required"} for name in inputs}
    attributes |= {name: {"role": "output"} for name in outputs}
    made = {"id": step_id, "name": step_id.title(), "type": "script", "attributes": attributes}
    return {**made, "script": {"language": "lua", "script": script}, **more}
