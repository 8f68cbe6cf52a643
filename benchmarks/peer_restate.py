"""Workloads on Restate, through its Python SDK and its HTTP API: ``peer_restate.py W1 SERVER FOLDER [SCALE [AT_ONCE]]``.

It runs in a virtual environment of its own and knows nothing of Resurgam; it prints what ``python -m resurgam.bench``
prints. SERVER is the program of Restate's server itself, not the script of its package that starts it. It runs with its default settings on free ports of this machine and
keeps its data in FOLDER; services run in a process of their own, as in its tutorial, and this process is the client. All
processes end with this one. A step is a `ctx.run`. AT_ONCE is how many workflows are in flight together where there are
many.

W6 is left out: a killed worker is not what holds the history there, and a killed server takes its own start, and the
retries of its invocations, into the measurement.
"""

import asyncio
import contextlib
import json
import os
import re
import resource
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import restate

PATIENCE = 60.0
START = 60.0
"""Seconds that the server and the services may take until they answer."""

bench = restate.Service("bench")
waiting = restate.Workflow("waiting")


async def step(number: int) -> int:
    """Do nothing."""
    return number


@bench.handler()
async def chain(ctx: restate.Context, length: int) -> int:
    """Run steps one after another."""
    for number in range(length):
        await ctx.run_typed("step", step, number=number)
    return length


@bench.handler()
async def fan(ctx: restate.Context, width: int) -> int:
    """Run steps at the same time."""
    return len(await restate.gather(*[ctx.run_typed("step", step, number=number) for number in range(width)]))


@bench.handler()
async def sleeper(ctx: restate.Context) -> None:
    """Sleep for longer than any measurement takes."""
    await ctx.sleep(timedelta(days=1))


@waiting.main()
async def run(ctx: restate.WorkflowContext) -> int:
    """Wait for a promise and return its value."""
    return await ctx.promise("go", type_hint=int).value()


@waiting.handler()
async def go(ctx: restate.WorkflowSharedContext, value: int) -> None:
    """Keep the promise."""
    await ctx.promise("go", type_hint=int).resolve(value)


class Client:
    """Calls services by the HTTP API of a server."""

    def __init__(self, session: aiohttp.ClientSession, ingress: str) -> None:
        self._session = session
        self._ingress = ingress

    async def call(self, path: str, argument: Any = None) -> float:
        """Call a handler, wait for its result, and return the seconds."""
        begin = time.perf_counter()
        # The server refuses a type of the content if there is none.
        body = {"skip_auto_headers": ["Content-Type"]} if argument is None else {"json": argument}
        async with self._session.post(f"{self._ingress}/{path}", **body) as answer:
            text = await answer.text()
            if not answer.ok:
                raise RuntimeError(f"{path}: {answer.status} {text}")
        return time.perf_counter() - begin


class Bench:
    """One run: the server, its folder, scale, and the number of workflows at once."""

    def __init__(self, server: str, folder: Path, scale: float, at_once: int) -> None:
        self.server = server
        self.folder = folder
        self.scale = scale
        self.at_once = at_once

    def size(self, full: int) -> int:
        """Return a size of the workload at this scale."""
        return max(1, round(full * self.scale))

    @contextlib.asynccontextmanager
    async def launched(self) -> AsyncIterator[Client]:
        """Start the server and the services on free ports; both end with the context."""
        node, ingress, admin, services = free_ports(4)
        settings = {
            "RESTATE_BASE_DIR": str(self.folder / "restate-data"),
            "RESTATE_BIND_IP": "127.0.0.1",
            "RESTATE_BIND_PORT": str(node),
            "RESTATE_INGRESS__BIND_PORT": str(ingress),
            "RESTATE_ADMIN__BIND_PORT": str(admin),
            "RESTATE_LISTEN_MODE": "tcp",
            "RESTATE_LOG_FILTER": "error",
            "RESTATE_DISABLE_TELEMETRY": "true",
        }
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with contextlib.ExitStack() as running:
            for command in ([self.server, "--no-logo"], [sys.executable, __file__, "services", str(services)]):
                process = subprocess.Popen(command, env=os.environ | settings, **quiet)
                running.enter_context(process)
                running.callback(process.kill)
            limits = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(connector=limits, timeout=aiohttp.ClientTimeout(None)) as session:
                await self.register(session, f"http://127.0.0.1:{admin}", f"http://127.0.0.1:{services}")
                yield Client(session, f"http://127.0.0.1:{ingress}")

    async def register(self, session: aiohttp.ClientSession, admin: str, services: str) -> None:
        """Make the services known to the server, as soon as both answer."""
        end, last = time.monotonic() + START, "it does not answer"
        while time.monotonic() < end:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.post(f"{admin}/deployments", json={"uri": services}) as answer:
                    if answer.ok:
                        return
                    last = (await answer.text()).replace("\n", " ")
            await asyncio.sleep(0.1)
        raise RuntimeError(f"the server did not start within {START:.0f} s: {last}")


def free_ports(number: int) -> list[int]:
    """Return ports that nothing uses."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


async def sequential(bench: Bench, client: Client) -> dict[str, Any]:
    """W1."""
    length = bench.size(100)
    times = [await client.call("bench/chain", length) for _ in rounds(23)]
    measured = times[3:] or times
    return sampled("W1", "step", [seconds / length for seconds in measured], length / statistics.median(measured))


async def concurrent(bench: Bench, client: Client) -> dict[str, Any]:
    """W2."""
    number, length = bench.size(1000), 10
    free = asyncio.Semaphore(bench.at_once)

    async def one() -> float:
        async with free:
            return await client.call("bench/chain", length)

    await asyncio.gather(*[one() for _ in range(bench.size(100))])
    latencies: list[float] = []
    rates: list[float] = []
    for _ in rounds(3):
        begin = time.perf_counter()
        latencies.extend(await asyncio.gather(*[one() for _ in range(number)]))
        rates.append(number * length / (time.perf_counter() - begin))
    return sampled("W2", "workflow", latencies, statistics.median(rates))


async def single(bench: Bench, client: Client) -> dict[str, Any]:
    """W3."""
    for _ in range(bench.size(20)):
        await client.call("bench/chain", 1)
    return sampled("W3", "workflow", [await client.call("bench/chain", 1) for _ in rounds(bench.size(300))], None)


async def fan_out(bench: Bench, client: Client) -> dict[str, Any]:
    """W4."""
    width = bench.size(1000)
    await client.call("bench/fan", width)
    times = [await client.call("bench/fan", width) for _ in rounds(10)]
    return sampled("W4", "fan-out", times, width / statistics.median(times))


async def reaction(bench: Bench, client: Client) -> dict[str, Any]:
    """W5. Whether a workflow waits already cannot be observed, so it gets some time before the promise is kept."""

    async def once(key: str) -> float:
        result = asyncio.create_task(client.call(f"waiting/{key}/run"))
        await asyncio.sleep(0.05)
        begin = time.perf_counter()
        await client.call(f"waiting/{key}/go", 1)
        await result
        return time.perf_counter() - begin

    for number in range(bench.size(20)):
        await once(f"warm-{number}")
    return sampled("W5", "signal", [await once(str(number)) for number in rounds(bench.size(300))], None)


async def sleepers(bench: Bench, client: Client) -> dict[str, Any]:
    """W7, until all starts are acknowledged. The server suspends an invocation after a minute without progress."""
    number = bench.size(10_000)
    begin = time.perf_counter()
    for begun in range(0, number, bench.at_once):
        some = range(min(bench.at_once, number - begun))
        await asyncio.gather(*[client.call("bench/sleeper/send") for _ in some])
    seconds = time.perf_counter() - begin
    return sampled("W7", "start of all", [seconds], number / seconds)


WORKLOADS: dict[str, Callable[[Bench, Client], Awaitable[dict[str, Any]]]] = {
    "W1": sequential,
    "W2": concurrent,
    "W3": single,
    "W4": fan_out,
    "W5": reaction,
    "W7": sleepers,
}


def rounds(most: int) -> Iterator[int]:
    """Yield the numbers of rounds: *most* of them, fewer if they take too long, at least one."""
    begin = time.perf_counter()
    for number in range(most):
        if number and time.perf_counter() - begin > PATIENCE:
            return
        yield number


def sampled(workload: str, sample: str, samples: Sequence[float], rate: float | None) -> dict[str, Any]:
    """Return the figures of some samples."""
    ordered = sorted(samples)
    return {
        "workload": workload,
        "title": "",
        "sample": sample,
        "samples": len(ordered),
        "p50": ordered[min(len(ordered) - 1, len(ordered) // 2)],
        "p95": ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))],
        "rate": rate,
        "rss": int(Path("/proc/self/statm").read_text("ascii").split()[1]) * resource.getpagesize(),
    }


def serve(port: int) -> None:
    """Serve the services until the process is killed."""
    from hypercorn.asyncio import serve as serve_app  # noqa: PLC0415 -- only this process needs it
    from hypercorn.config import Config  # noqa: PLC0415 -- as above

    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.h2_max_concurrent_streams = 2**31 - 1  # as many invocations as the server wants to run at once
    asyncio.run(serve_app(restate.app(services=[bench, waiting]), config))  # type: ignore[arg-type]


def described(server: str) -> dict[str, str]:
    """Return the versions, and whether the server's log is synced before it acknowledges, as its settings say."""
    from importlib.metadata import version  # noqa: PLC0415 -- as above

    def said(*options: str) -> str:
        return subprocess.run([server, *options], capture_output=True, text=True, check=True).stdout

    section = said("--dump-config").partition("[log-server]")[2].partition("\n[")[0]
    found = re.search(r"^rocksdb-disable-wal-fsync = (\w+)$", section, re.MULTILINE)
    return {
        "restate": said("--version").split()[-1],
        "restate_sdk": version("restate-sdk"),
        "restate_disable_wal_fsync": found[1] if found else "unknown",
    }


async def measured(name: str, server: str, folder: str, scale: str = "1", at_once: str = "1000") -> None:
    """Run a workload and print its figures."""
    run = Bench(server, Path(folder), float(scale), int(at_once))
    async with run.launched() as client:
        figures = await WORKLOADS[name](run, client)
    print(json.dumps([figures]), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "services":
        serve(int(sys.argv[2]))
    elif sys.argv[1] == "describe":
        print(json.dumps(described(sys.argv[2])))
    else:
        asyncio.run(measured(*sys.argv[1:]))
