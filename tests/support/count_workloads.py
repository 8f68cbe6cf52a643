"""The workloads whose cost is counted, and what `count_instructions` runs under callgrind: ``count_workloads.py W1 W4``.

Each workload runs at two sizes, so that the difference is what further units cost and nothing else. Only its *counted*
part is counted: what it needs before and afterwards stands outside.
"""

import asyncio
import contextlib
import gc
import os
import random
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeAlias

from resurgam import Engine, Event
from resurgam.bench import flows, programs
from resurgam.core.event import decode_event, encode_event
from resurgam.flows.catalog import Catalog
from resurgam.flows.planner import plan
from resurgam.runtime.execution.execution import Execution
from resurgam.runtime.registry import Registry
from resurgam.runtime.system import SystemClock
from resurgam.worker import watchdog
from support import postgres, redis
from support.flow_steps import step

Counted: TypeAlias = Callable[[], AbstractContextManager[object]]

MARK = "getpriority"
"""A function of the C library that nothing else calls: callgrind writes down what it has counted before each call.

Callgrind knows it by name even where Python is stripped of its own.
"""

CHAIN = 10
"""The length of the chains of W2."""

_SLOWER = 1000
_LOOKS = 4


class SlowLoop(asyncio.SelectorEventLoop):
    """A loop for which a thousandth of the time passes.

    Callgrind makes everything fifty times slower, but the engine would look after other processes every 10 ms all the
    same, and what that costs would be counted as the steps', more on a slow machine than on a fast one.
    """

    def time(self) -> float:
        return super().time() / _SLOWER


class CountingClock(SystemClock):
    """A clock that moves on by a millisecond with every few looks at it.

    No lease lapses and none is renewed. The ids of executions, which begin with the moment, come in the same order in
    every run: it decides what SQLite's indexes cost.
    """

    def __init__(self) -> None:
        self._begin = super().now()
        self._looks = 0

    def now(self) -> int:
        super().now()  # what it costs is part of a step
        self._looks += 1
        return self._begin + self._looks // _LOOKS


async def sequential(engine: Engine, steps: int, counted: Counted) -> None:
    """W1: one chain of activities."""
    handle = await engine.start(programs.chain, steps)
    with counted():
        await handle.result()


async def concurrent(engine: Engine, workflows: int, counted: Counted) -> None:
    """W2: many chains at once, from their start to their result."""
    with counted():
        await asyncio.gather(*[engine.execute(programs.chain, CHAIN) for _ in range(workflows)])


async def single(engine: Engine, workflows: int, counted: Counted) -> None:
    """W3: start a workflow of one activity and wait for its result, one after another."""
    with counted():
        for _ in range(workflows):
            await engine.execute(programs.chain, 1)


async def fan_out(engine: Engine, width: int, counted: Counted) -> None:
    """W4: one workflow that gathers activities."""
    with counted():
        await engine.execute(programs.fan, width)


async def reaction(engine: Engine, signals: int, counted: Counted) -> None:
    """W5: signal a waiting workflow and wait for its result, one after another."""
    handles = [await engine.start(programs.answering) for _ in range(signals)]
    await until_at_rest(engine)
    with counted():
        for handle in handles:
            await handle.signal("go", 1)
            await handle.result()


async def goals(engine: Engine, number: int, counted: Counted) -> None:
    """W13: many flows at once, from their start to their result."""
    with counted():
        await asyncio.gather(*[flows.run_flow(engine, one) for one in range(number)])


async def plans(engine: Engine, number: int, counted: Counted) -> None:
    """Plan over a catalog of 1,000 steps, in ten layers: each takes what two of the layer before provide."""
    layers, width = 10, 100

    def takes(layer: int, one: int) -> str:
        return f"a{layer - 1}.{one} a{layer - 1}.{(one + 1) % width}" if layer else ""

    places = [(layer, one) for layer in range(layers) for one in range(width)]
    catalog = Catalog(step(f"s{layer}.{one}: {takes(layer, one)} > a{layer}.{one}") for layer, one in places)
    with counted():
        for one in range(number):
            made = plan(catalog, [f"s{layers - 1}.{one}"], {}, "strict", lambda *_: True)
            assert len(made.steps) == layers * (layers + 1) / 2


async def replay(engine: Engine, steps: int, counted: Counted) -> None:
    """Do what a worker does with a history that it reads; a step is two events."""
    written = [encode_event(entry) for entry in await unfinished_history(engine, steps)]
    with counted():
        execution = Execution(programs.chain, [decode_event(entry) for entry in written])
        execution.replay()
        execution.close()


async def sleepers(engine: Engine, workflows: int, counted: Counted) -> None:
    """W7: start a workflow that sleeps and wait until it is asleep, one after another."""
    with counted():
        for _ in range(workflows):
            await engine.start(programs.sleeper)
            await until_at_rest(engine)


async def starts_over_http(engine: Engine, workflows: int, counted: Counted) -> None:
    """W14: start workflows that sleep by requests to the application, without a socket, one after another."""
    from resurgam.web import app  # here: callgrind need not run the import for the other workloads

    served = app(engine, keys=False)
    with counted():
        for _ in range(workflows):
            await _start_over_http(served)
            await until_at_rest(engine)


async def _start_over_http(served: Callable[..., Awaitable[None]]) -> None:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b'{"workflow":"sleeper"}', "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"host", b"127.0.0.1:8080"), (b"content-type", b"application/json"), (b"content-length", b"22")]
    scope = {"type": "http", "method": "POST", "path": "/workflows", "raw_path": b"/workflows", "root_path": ""}
    await served({**scope, "query_string": b"", "headers": headers, "state": {}}, receive, send)
    assert sent[0]["status"] == 201, sent


async def unfinished_history(engine: Engine, length: int) -> list[Event]:
    """Return the history of a chain up to its last activity."""
    handle = await engine.start(programs.chain, length)
    await handle.result()
    return [entry for entry in await handle.history() if not entry.type.startswith(("workflow_c", "workflow_d"))]


async def until_at_rest(engine: Engine) -> None:
    """Wait until the worker holds nothing. Without a timer, which would take a thousand times as long."""
    while not engine.resting:
        await asyncio.sleep(0)


class Workload(NamedTuple):
    """A workload, its name in the budget, its two sizes, how many units there are for each of its size.

    *server* returns the URL of an empty store on a server; None: the store is a file.
    """

    run: Callable[[Engine, int, Counted], Awaitable[None]]
    unit: str
    sizes: tuple[int, int]
    units: int = 1
    registry: Registry = programs.registry
    server: Callable[[], str] | None = None

    def per_unit(self, short: float, long: float) -> float:
        """Return the cost of one unit from the costs of both sizes."""
        return (long - short) / (self.units * (self.sizes[1] - self.sizes[0]))


WORKLOADS = {
    "W1": Workload(sequential, "sequential step", (60, 120)),
    "W2": Workload(concurrent, "step of many workflows", (20, 60), CHAIN),
    "W3": Workload(single, "start and step", (15, 60)),
    "W4": Workload(fan_out, "step of a fan-out", (100, 200)),
    "W5": Workload(reaction, "signal", (15, 60)),
    "replay": Workload(replay, "replayed event", (60, 120), 2),
    "W7": Workload(sleepers, "sleeper", (15, 75)),
    "W13": Workload(goals, "step of many flows", (20, 60), flows.STEPS, flows.registry),
    "W14": Workload(starts_over_http, "start over HTTP", (15, 75)),
    "plan": Workload(plans, "plan over 1,000 steps", (10, 40)),
    "W1-redis": Workload(sequential, "sequential step on Redis", (60, 120), server=redis.fresh_url),
    "W2-redis": Workload(concurrent, "step of many workflows on Redis", (20, 60), CHAIN, server=redis.fresh_url),
    "W1-postgres": Workload(sequential, "sequential step on Postgres", (60, 120), server=postgres.fresh_url),
    "W2-postgres": Workload(
        concurrent, "step of many workflows on Postgres", (20, 60), CHAIN, server=postgres.fresh_url
    ),
}
"""On a server only what the engine's own process does is counted."""


async def run(name: str, counted: Counted) -> None:
    """Run a workload on a store of its own: once to fill every cache, then counted at both sizes."""
    workload = WORKLOADS[name]
    with tempfile.TemporaryDirectory(prefix="resurgam-counted-") as folder:
        url = workload.server() if workload.server is not None else f"sqlite:///{folder}/counted.db"
        async with Engine(url, registry=workload.registry, clock=CountingClock(), tick_limit=3600) as engine:
            await workload.run(engine, workload.sizes[0], contextlib.nullcontext)
            for size in workload.sizes:
                await workload.run(engine, size, counted)


def run_all(names: list[str], counted: Counted) -> None:
    """Run workloads one after another.

    Without the garbage collector: when it runs, and what that costs, depends on all modules that are imported. Without
    the watchdog: it looks four times a second, and reports ticks that are slow only because they are counted. With the
    same random ids in every run: their order decides what SQLite's indexes cost.
    """
    gc.disable()
    os.urandom = random.Random(0).randbytes
    assert hasattr(watchdog, "_INTERVAL")
    watchdog._INTERVAL = 3600.0  # type: ignore[misc]
    with asyncio.Runner(loop_factory=SlowLoop) as runner:
        for name in names:
            runner.run(run(name, counted))


@contextlib.contextmanager
def between_marks() -> Iterator[None]:
    """Let callgrind write down what it has counted, before and after."""
    os.getpriority(os.PRIO_PROCESS, 0)
    yield
    os.getpriority(os.PRIO_PROCESS, 0)


if __name__ == "__main__":
    run_all(sys.argv[1:], between_marks)
