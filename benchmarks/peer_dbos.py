"""The seven workloads on DBOS, through its public API: ``peer_dbos.py W1 default|fast FOLDER|URL [SCALE [AT_ONCE]]``.

It uses SQLite in a folder, or the Postgres database of a URL, there in a schema for each application.

It runs in a virtual environment of its own and knows nothing of Resurgam; it prints what ``python -m resurgam.bench``
prints. *default* is DBOS as its tutorial sets it up, with async functions. *fast* is the quickest that we found in what its
documentation and that of SQLite offer at the same durability: the file in WAL mode, four threads instead of as many as there is work (more only
wait for SQLite's one writer, and for Python's lock), plain functions instead of async ones where nothing runs at once, and
where a message is waited for, a look for it every millisecond (the least it allows). DBOS sets no ``PRAGMA synchronous``, so
that it is the default of SQLite in both. On Postgres *fast* has the same threads and plain functions; the pool of DBOS has 20
connections already, and messages come by NOTIFY. AT_ONCE is how many workflows are in flight together where there are many.
"""

import asyncio
import contextlib
import gc
import itertools
import json
import os
import resource
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dbos import DBOS, DBOSConfig

PATIENCE = 60.0
stamps: list[float] = []
gates = itertools.count()
levels: list[str] = []


@DBOS.step()
async def step(number: int) -> int:
    """Do nothing."""
    return number


@DBOS.step()
async def stamped(number: int) -> int:
    """Record the time."""
    stamps.append(time.perf_counter())
    return number


@DBOS.step()
def plain_stamped(number: int) -> int:
    """Record the time, without async."""
    stamps.append(time.perf_counter())
    return number


@DBOS.step()
async def gate() -> None:
    """Return at the first call of a process; at the second print a line and never return."""
    if next(gates) > 0:
        print("reached", flush=True)
        await asyncio.Event().wait()


@DBOS.workflow()
async def chain(length: int) -> int:
    """Run steps one after another."""
    for number in range(length):
        await step(number)
    return length


@DBOS.workflow()
async def stamped_chain(length: int) -> int:
    """Run steps one after another, and record the time of each."""
    for number in range(length):
        await stamped(number)
    return length


@DBOS.workflow()
def plain_chain(length: int) -> int:
    """The same, without async."""
    for number in range(length):
        plain_stamped(number)
    return length


@DBOS.workflow()
async def fan(width: int) -> int:
    """Run steps at the same time."""
    return len(await asyncio.gather(*[step(number) for number in range(width)]))


@DBOS.workflow()
async def answering() -> Any:
    """Wait for a message and return it."""
    return await DBOS.recv_async("go", timeout_seconds=600)


@DBOS.workflow()
def plain_answering() -> Any:
    """The same, without async."""
    return DBOS.recv("go", timeout_seconds=600)


@DBOS.workflow()
async def until_killed(length: int) -> None:
    """Run a chain, then gates for ever."""
    for number in range(length):
        await step(number)
    while True:
        await gate()


@DBOS.workflow()
async def sleeper() -> None:
    """Sleep for longer than any measurement takes."""
    await DBOS.sleep_async(86_400)


class Bench:
    """One run: its settings, folder or URL, scale, and the number of workflows at once."""

    def __init__(self, settings: str, place: str, scale: float, at_once: int) -> None:
        self.fast = settings == "fast"
        self.settings = settings
        self.place = place
        self.scale = scale
        self.at_once = at_once

    def size(self, full: int) -> int:
        """Return a size of the workload at this scale."""
        return max(1, round(full * self.scale))

    def launch(self, name: str) -> None:
        """Open an application with this name, and recover its workflows."""
        config: DBOSConfig = {"name": "bench", "log_level": "ERROR"}
        if self.fast:
            config["max_executor_threads"] = 4
        if self.place.startswith("postgresql:"):
            config["system_database_url"] = self.place
            config["dbos_system_schema"] = name
            DBOS(config=config)
            DBOS.launch()
            levels.append(synchronous_commit(self.place))
        else:
            self._launch_on_file(Path(self.place) / f"{name}.sqlite", config)

    def _launch_on_file(self, file: Path, config: DBOSConfig) -> None:
        config["system_database_url"] = f"sqlite:///{file}"
        if self.fast:
            with contextlib.closing(sqlite3.connect(file)) as connection:
                connection.execute("PRAGMA journal_mode = WAL")
            if file.stem == "w5":
                config["notification_listener_polling_interval_sec"] = 0.001
        DBOS(config=config)
        DBOS.launch()
        # DBOS sets no level, so another connection of the same library to this file has the same level as its own.
        with contextlib.closing(sqlite3.connect(file)) as connection:
            levels.append(("OFF", "NORMAL", "FULL", "EXTRA")[connection.execute("PRAGMA synchronous").fetchone()[0]])


def synchronous_commit(url: str) -> str:
    """Return the setting of a database; DBOS does not change it."""
    import psycopg  # noqa: PLC0415 -- only for Postgres

    with psycopg.connect(url) as connection:
        found = connection.execute("SHOW synchronous_commit").fetchone()
    return str(found[0]) if found else ""


def execute_plain(workflow: Callable[..., Any], *args: Any) -> float:
    """Start a workflow, wait for its result, and return the seconds."""
    begin = time.perf_counter()
    DBOS.start_workflow(workflow, *args).get_result()
    return time.perf_counter() - begin


async def execute(workflow: Callable[..., Awaitable[Any]], *args: Any) -> float:
    """Start a workflow, wait for its result, and return the seconds."""
    begin = time.perf_counter()
    handle = await DBOS.start_workflow_async(workflow, *args)
    await handle.get_result()
    return time.perf_counter() - begin


def sequential(bench: Bench) -> list[dict[str, Any]]:
    """W1."""
    length = bench.size(100)
    bench.launch("w1")
    times: list[float] = []
    steps: list[float] = []

    def note(seconds: float) -> None:
        times.append(seconds)
        steps.extend(after - before for before, after in itertools.pairwise(stamps))
        stamps.clear()

    async def many() -> None:
        for _ in rounds(23):
            note(await execute(stamped_chain, length))

    if bench.fast:
        for _ in rounds(23):
            note(execute_plain(plain_chain, length))
    else:
        asyncio.run(many())
    rate = length / statistics.median(times)
    return [sampled("W1", "step", steps or times, rate)]


def concurrent(bench: Bench) -> list[dict[str, Any]]:
    """W2."""
    number, length = bench.size(1000), 10
    bench.launch("w2")
    latencies: list[float] = []
    rates: list[float] = []
    free = asyncio.Semaphore(bench.at_once)

    async def one() -> float:
        async with free:
            return await execute(chain, length)

    async def many() -> None:
        await asyncio.gather(*[execute(chain, length) for _ in range(bench.size(20))])
        for _ in rounds(3):
            begin = time.perf_counter()
            latencies.extend(await asyncio.gather(*[one() for _ in range(number)]))
            rates.append(number * length / (time.perf_counter() - begin))

    asyncio.run(many())
    return [sampled("W2", "workflow", latencies, statistics.median(rates))]


def single(bench: Bench) -> list[dict[str, Any]]:
    """W3."""
    bench.launch("w3")
    number = bench.size(300)

    async def many() -> list[float]:
        return [await execute(chain, 1) for _ in rounds(number + 20)]

    times = [execute_plain(plain_chain, 1) for _ in rounds(number + 20)] if bench.fast else asyncio.run(many())
    return [sampled("W3", "workflow", times[min(20, len(times) - 1) :], None)]


def fan_out(bench: Bench) -> list[dict[str, Any]]:
    """W4."""
    width = bench.size(1000)
    bench.launch("w4")

    async def many() -> list[float]:
        await execute(fan, bench.size(20))
        return [await execute(fan, width) for _ in rounds(10)]

    times = asyncio.run(many())
    return [sampled("W4", "fan-out", times, width / statistics.median(times))]


def reaction(bench: Bench) -> list[dict[str, Any]]:
    """W5. Whether a workflow waits already cannot be observed, so it gets some time before the message is sent."""
    bench.launch("w5")
    number, times = bench.size(100), []

    def once() -> float:
        handle = DBOS.start_workflow(plain_answering)
        time.sleep(0.05)
        begin = time.perf_counter()
        DBOS.send(handle.workflow_id, 1, "go")
        handle.get_result()
        return time.perf_counter() - begin

    async def many() -> None:
        for _ in rounds(number):
            handle = await DBOS.start_workflow_async(answering)
            await asyncio.sleep(0.05)
            begin = time.perf_counter()
            await DBOS.send_async(handle.workflow_id, 1, "go")
            await handle.get_result()
            times.append(time.perf_counter() - begin)

    if bench.fast:
        times.extend(once() for _ in rounds(number))
    else:
        asyncio.run(many())
    return [sampled("W5", "signal", times, None)]


def recovery(bench: Bench) -> list[dict[str, Any]]:
    """W6: the killed processes run this file, as the workload ``victim``."""
    found = []
    for length in (bench.size(1_000), bench.size(10_000)):
        command = [sys.executable, __file__, f"victim-{length}", bench.settings, bench.place]
        reached([*command, "1"])
        times = [reached([*command, "0"]) for _ in rounds(bench.size(3))]
        found.append(sampled("W6", "recovery", times, None) | {"more": {"length": length}})
    return found


def reached(command: list[str]) -> float:
    """Start a process, kill it when it prints that it is ready, and return the seconds until then."""
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        seconds = time.perf_counter() - begin
        process.kill()
    if said != b"reached\n":
        sys.exit("a process ended before its first new step")
    return seconds


def victim(bench: Bench, name: str) -> None:
    """Start a chain that never ends (scale 1), or only recover it (scale 0)."""
    bench.launch(name)

    async def serve() -> None:
        if bench.scale:
            await DBOS.start_workflow_async(until_killed, int(name.removeprefix("victim-")))
        await asyncio.Event().wait()

    asyncio.run(serve())


def sleepers(bench: Bench) -> list[dict[str, Any]]:
    """W7. DBOS keeps every sleeper in memory, however it is started."""
    half = bench.size(5000)
    bench.launch("w7")
    memory = [rss()]

    async def many() -> float:
        seconds = 0.0
        for _ in range(2):
            begin = time.perf_counter()
            for begun in range(0, half, bench.at_once):
                some = range(min(bench.at_once, half - begun))
                await asyncio.gather(*[DBOS.start_workflow_async(sleeper) for _ in some])
            seconds += time.perf_counter() - begin
            gc.collect()
            memory.append(rss())
        return seconds

    async def measured() -> None:
        seconds = await many()
        figures = sampled("W7", "start of all", [seconds], 2 * half / seconds)
        print_and_exit([figures | {"more": {"bytes_per_cold_sleeper": (memory[2] - memory[1]) / half}}])

    asyncio.run(measured())
    return []


WORKLOADS = {
    "W1": sequential,
    "W2": concurrent,
    "W3": single,
    "W4": fan_out,
    "W5": reaction,
    "W6": recovery,
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
        "level": levels[-1] if levels else None,
        "rss": rss(),
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024),
    }


def rss() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * resource.getpagesize()


def print_and_exit(figures: list[dict[str, Any]]) -> None:
    """Print figures and end the process, with everything that still runs in it."""
    print(json.dumps(figures), flush=True)
    os._exit(0)


def main(name: str, settings: str, place: str, scale: str = "1", at_once: str = "1000") -> None:
    """Run a workload and print its figures."""
    bench = Bench(settings, place, float(scale), int(at_once))
    if name.startswith("victim-"):
        victim(bench, name)
    print_and_exit(WORKLOADS[name](bench))


if __name__ == "__main__":
    main(*sys.argv[1:])
