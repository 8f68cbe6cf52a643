"""Schemathesis calls every route with values that fit the document, and with values that do not."""

import asyncio
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import uvicorn

from resurgam import Engine
from resurgam.web import app
from resurgam.web.access import Role
from resurgam.web.keys import Keys
from support.web import SHIP, checkout_code


class Served(NamedTuple):
    """A server, and a key of it."""

    address: str
    key: str


@pytest.fixture
def served() -> Iterator[Served]:
    """Serve a store in memory, whose workflows and steps are those of the examples in the document."""
    servers: list[uvicorn.Server] = []
    keys: queue.Queue[str] = queue.Queue()
    # With the protocol: otherwise asyncio does not know that it is TCP, and each answer waits for an acknowledgement.
    with socket.socket(proto=socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()

        async def serve() -> None:
            async with Engine("memory://", registry=checkout_code()) as engine:
                await engine.register_step(SHIP)
                config = uvicorn.Config(app(engine, argyll=False), log_level="critical")
                servers.append(uvicorn.Server(config))
                _, key = await Keys(engine.store.values).create("fuzzer", Role.ADMIN, 0)
                keys.put(key)
                await servers[0].serve(sockets=[listening])

        thread = threading.Thread(target=asyncio.run, args=[serve()])
        thread.start()
        try:
            yield Served(f"http://127.0.0.1:{listening.getsockname()[1]}", keys.get(timeout=30))
        finally:
            servers[0].should_exit = True
            thread.join(30)


@pytest.mark.timeout(200)
def test_every_route_answers_as_the_document_says(served: Served, tmp_path: Path) -> None:
    """Whatever is sent: no status, content type or body that is not documented, no 5xx, and no way around a key."""
    command = [
        *(
            sys.executable,
            "-c",
            "from schemathesis.cli import schemathesis; schemathesis()",
        ),
        *("run", f"{served.address}/openapi.json", "--checks", "all", "-H", f"Authorization: Bearer {served.key}"),
        *("--phases", "examples,coverage,fuzzing,stateful", "--max-examples", "2", "--seed", "1", "--no-shrink"),
        *(
            "--suppress-health-check",
            "all",
            "--warnings",
            "off",
            "--request-timeout",
            "20",
            "--generation-database",
            "none",
        ),
    ]
    support = Path(__file__).parents[1]
    path = os.pathsep.join((str(support), *sys.path))
    ran = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "SCHEMATHESIS_HOOKS": "support.fuzzed_calls", "PYTHONPATH": path, "NO_COLOR": "1"},
    )
    assert ran.returncode == 0, f"{ran.stdout[-20_000:]}\n{ran.stderr[-2000:]}"
