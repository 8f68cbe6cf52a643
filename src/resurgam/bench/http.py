"""W14: the HTTP API under load, and flows whose steps are services; see `http_load` and `http_server`."""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

from resurgam.bench import http_load
from resurgam.bench.figures import Figures, Raw, level_of, percentile, rounds, sampled
from resurgam.bench.http_load import Load, Stream
from resurgam.bench.http_server import EMPTY
from resurgam.bench.processes import compile_package
from resurgam.bench.scene import Scene, timed
from resurgam.core.codec import MAX_PAYLOAD
from resurgam.core.errors import StoreError
from resurgam.engine import Engine
from resurgam.runtime.registry import Registry

STEPS: Final = 10
IN_FLIGHT: Final = 32
_START: Final = b'{"workflow":"sleeper"}'
_STARTED: Final = "/events?type=workflow_started"


async def http(scene: Scene) -> list[Figures]:
    """W14: starts beside empty POSTs, 1,000 event streams, and flows of ten services beside the plain client."""
    compile_package()
    async with Engine(scene.storage.url("w14"), worker=False) as engine:
        level = level_of(engine.store)
    with _serving("api", scene.storage.url("w14")) as port:
        measured = [await _starts(scene, port), await _streams(scene, port)]
    with _serving("service") as port:
        measured.append(await _chains(scene, port))
    return [replace(figures, level=level) for figures in measured]


async def _starts(scene: Scene, port: int) -> Figures:
    """Start workflows, each with its first advance in one commit; in turns with requests that do nothing."""
    number = scene.size(5000)
    starts: list[Load] = []
    empty: list[Load] = []
    for path in ("/workflows", EMPTY):
        await http_load.post(port, path, _START, scene.size(1000))
    for _ in rounds(5):
        starts.append(await http_load.post(port, "/workflows", _START, number))
        empty.append(await http_load.post(port, EMPTY, _START, number))
    ratio = percentile([one.rate / other.rate for one, other in zip(starts, empty, strict=True)], 0.5)
    title = f"{number:,} starts by {http_load.CONNECTIONS} connections"
    return replace(
        sampled("W14", title, "start", [seconds for one in starts for seconds in one.seconds]),
        rate=percentile([one.rate for one in starts], 0.5),
        raw=Raw(
            of="empty POSTs of the same size",
            p50=percentile([seconds for one in empty for seconds in one.seconds], 0.5),
            rate=percentile([one.rate for one in empty], 0.5),
        ),
        more={"to_empty_posts": ratio},
    )


async def _streams(scene: Scene, port: int) -> Figures:
    """Start workflows while many streams are open: each event must reach each stream."""
    number, times = scene.size(1000), scene.size(50)
    latencies = []
    async with http_load.streams(port, _STARTED, number) as opened:
        for count in range(1, times + 1):
            reached = _reach(opened, count)
            begin = time.perf_counter()
            await http_load.post(port, "/workflows", _START, 1)
            await reached
            latencies.append(time.perf_counter() - begin)
        reached = _reach(opened, 2 * times)
        begin = time.perf_counter()
        await http_load.post(port, "/workflows", _START, times)
        await reached
        rate = number * times / (time.perf_counter() - begin)
        served = sum(one.events == 2 * times and not one.done.done() for one in opened)
    return replace(
        sampled("W14", f"1 start seen by {number:,} event streams", "start", latencies),
        rate=rate,
        more={"streams": float(served)},
    )


async def _reach(opened: list[Stream], events: int) -> None:
    await asyncio.gather(*[one.until(events) for one in opened])


async def _chains(scene: Scene, port: int) -> Figures:
    """Run flows of ten services one after another, and call the service without an engine; in turns."""
    from resurgam.flows import HttpStep  # noqa: PLC0415 -- only this workload pays for the import

    each = scene.size(20)
    latencies: list[float] = []
    rates: list[float] = []
    beside: list[float] = []
    async with Engine(scene.storage.url("w14-flows"), registry=Registry()) as engine:
        for step in range(1, STEPS + 1):
            url = f"http://{http_load.HOST}:{port}/v{step}"
            await engine.register_step(HttpStep(f"s{step}", url, inputs=[f"v{step - 1}"], outputs=[f"v{step}"]))

        async def run() -> None:
            handle = await engine.start_flow([f"s{STEPS}"], {"v0": 1})
            await handle.result()

        async def timed_run() -> None:
            latencies.append(await timed(run()))

        async with _plain_client(port) as call:
            await asyncio.gather(_in_flight(run, 2), _in_flight(call, 2))
            for _ in rounds(3):
                rates.append(STEPS / await _in_flight(timed_run, each))
                beside.append(1 / await _in_flight(call, each * STEPS))
    return replace(
        sampled("W14", f"{IN_FLIGHT} flows at a time x {STEPS} HTTP steps in a row", "flow", latencies),
        rate=percentile(rates, 0.5),
        raw=Raw(of="calls of the outbound client", p50=1 / percentile(beside, 0.5), rate=percentile(beside, 0.5)),
        more={"to_calls": percentile([one / other for one, other in zip(rates, beside, strict=True)], 0.5)},
    )


async def _in_flight(work: Callable[[], Awaitable[object]], each: int) -> float:
    """Do some work repeatedly, so often at a time; return the seconds that one took of the whole."""

    async def repeat() -> None:
        for _ in range(each):
            await work()

    return await timed(asyncio.gather(*[repeat() for _ in range(IN_FLIGHT)])) / (IN_FLIGHT * each)


@contextlib.asynccontextmanager
async def _plain_client(port: int) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """Open the client of HTTP steps; yield a function that calls the service as a step does, and records nothing."""
    from resurgam.flows.http.call import outgoing  # noqa: PLC0415 -- as above
    from resurgam.flows.http.client import ServiceClient  # noqa: PLC0415 -- as above
    from resurgam.flows.http.message import HttpCall  # noqa: PLC0415 -- as above
    from resurgam.flows.http.outbound import Outbound  # noqa: PLC0415 -- as above

    client = ServiceClient(Outbound(), max_body=MAX_PAYLOAD)
    url = f"http://{http_load.HOST}:{port}/v1"
    call = HttpCall(flow_id="0" * 26, step_id="s1", receipt="0" * 28, url=url, arguments={"v0": msgspec.Raw(b"1")})
    request = outgoing(call)
    try:
        yield lambda: client.send(request, timeout=30)
    finally:
        await client.close()


@contextlib.contextmanager
def _serving(*arguments: str) -> Iterator[int]:
    """Run a server in a process of its own; yield its port."""
    command = [sys.executable, "-m", "resurgam.bench.http_server", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ) as process:  # noqa: S603 -- our own
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise StoreError(f"{' '.join(command[:4])} ended before it listened")
            yield int(line)
        finally:
            process.kill()
