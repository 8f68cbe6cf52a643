"""An engine as a process of its own: the market, the bakery and the flows of parcels, with a worker and the HTTP API.

``python mixed_engine.py URL`` serves until it is killed, or drained by SIGTERM; its port is in ``PARCEL_PORT``.
``--read`` makes it a client that only follows the feed. In the folder ``MIXED_NOTES`` each process keeps two files:
``runs-PID.jsonl`` has a line for the begin and the end of every attempt of an activity, and for each moment in which the
process could not renew its leases in time; ``feed-PID.jsonl`` has every event that the feed has returned to it.
"""

import argparse
import asyncio
import functools
import itertools
import json
import logging
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from acceptance import bakery, marketplace
from acceptance.parcel_server import signed_outbound
from resurgam import Engine, Registry
from resurgam.core import event as events
from resurgam.runtime.system import SystemClock
from resurgam.store.records import Extended, FeedGrown, FeedQuery, Lease, Refused
from resurgam.web import app
from resurgam.web.public_url import set_public_url
from resurgam.web.server import HttpServer, bind
from resurgam.worker.attempts import ActivityRunner
from resurgam.worker.heartbeat import Result, RunningAttempt
from resurgam.worker.leases import Leases

CLOCK = SystemClock()
QUEUES = ("default", marketplace.DOCKS)
LOOK = 0.05
"""Seconds between two looks at the clock, by which a process knows that it stood still."""

registry = Registry()
for part in (bakery.registry, marketplace.registry):
    registry.workflows.update(part.workflows)
    registry.activities.update(part.activities)


class Notes:
    """The files of this process. A line is one write, so that a kill cuts none but the last."""

    def __init__(self) -> None:
        folder = Path(os.environ["MIXED_NOTES"])
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._runs = os.open(folder / f"runs-{os.getpid()}.jsonl", flags, 0o600)
        self._feed = os.open(folder / f"feed-{os.getpid()}.jsonl", flags, 0o600)

    def run(self, what: str, **about: Any) -> None:
        """Write down what happened to an attempt, or to the process."""
        line = json.dumps({"what": what, "at": CLOCK.now(), "pid": os.getpid(), **about})
        os.write(self._runs, f"{line}\n".encode())

    def feed(self, lines: Sequence[bytes]) -> None:
        """Write down events of the feed."""
        os.write(self._feed, b"".join(b"%s\n" % line for line in lines))


def note_attempts(notes: Notes) -> None:
    """Note every attempt that this process runs from now on, before its result leaves the process."""
    inner, numbers = ActivityRunner.run, itertools.count()

    async def run(
        self: ActivityRunner, attempt: RunningAttempt, completed: Callable[[RunningAttempt, Result], None]
    ) -> Result:
        task, number = attempt.task, next(numbers)
        notes.run(
            "begin",
            number=number,
            entity=task.entity_id,
            execution=task.execution_id,
            ref=task.request.ref,
            name=task.request.name,
            attempt=task.attempt,
            delivery=task.deliveries,
        )

        def ended(attempt: RunningAttempt, event: Result) -> None:
            notes.run("end", number=number, result=event.type)
            completed(attempt, event)

        result = await inner(self, attempt, ended)
        if not isinstance(result, events.ActivityCompleted):
            notes.run("end", number=number, result=result.type)
        return result

    ActivityRunner.run = run  # type: ignore[method-assign]


def note_lapses(notes: Notes, lease: float) -> "asyncio.Task[None]":
    """Note when leases may have expired though nobody stopped this process: it was starved, or its store was.

    A renewal begins a third of a lease after the last one. Where it comes too late, either the process or the renewal
    took a third of a lease too long; a quarter leaves some room.
    """
    longest, inner = 1000 * lease / 4, Leases.extend

    async def extend(self: Leases, leases: Sequence[Lease]) -> Sequence[Extended | Refused]:
        begun = CLOCK.now()
        try:
            return await inner(self, leases)
        finally:
            if CLOCK.now() - begun > longest:
                notes.run("lapse", since=begun, why="renewal")

    async def look() -> None:
        while True:
            begun = CLOCK.now()
            await asyncio.sleep(LOOK)
            if CLOCK.now() - begun > longest:
                notes.run("lapse", since=begun, why="process")

    Leases.extend = extend  # type: ignore[method-assign]
    return asyncio.create_task(look())


async def follow(engine: Engine, notes: Notes) -> None:
    """Note all events of the feed, from the first one on, for ever."""
    cursor = ""
    while True:
        page = await engine.store.feed.read(FeedQuery(after=cursor, limit=200))
        if page.entries:
            notes.feed([b"%s %d %s" % (one.execution_id.encode(), one.seq, bytes(one.body)) for one in page.entries])
        cursor = page.cursor
        if not page.more:
            await engine.store.wait(FeedGrown(after=cursor))


async def _follow_until(stopped: asyncio.Event, engine: Engine, notes: Notes) -> None:
    """Follow the feed until the engine is told to stop; an error of the feed is one of the process."""
    following, waiting = asyncio.create_task(follow(engine, notes)), asyncio.create_task(stopped.wait())
    await asyncio.wait({following, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if following.done():
        following.result()
    following.cancel()


async def _serve(url: str, lease: float, cache: int) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    notes, port = Notes(), int(os.environ["PARCEL_PORT"])
    note_attempts(notes)
    lapses = note_lapses(notes, lease)
    opened = Engine(url, registry=registry, lease=lease, queues=QUEUES, cache_size=cache, outbound=signed_outbound())
    async with opened as engine:
        http = HttpServer(app(engine, keys=False, argyll=False), bind("127.0.0.1", port))
        await http.start()
        await set_public_url(engine, f"http://127.0.0.1:{port}")
        await _follow_until(stopped, engine, notes)
        await http.drain(asyncio.Event())
    lapses.cancel()
    notes.run("drained")


async def _read(url: str) -> None:
    async with Engine(url, registry=registry, worker=False) as engine:
        await follow(engine, Notes())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--lease", type=float, default=2)
    parser.add_argument("--queue", default="default", help="ignored: it serves all")
    parser.add_argument("--cache", type=int, default=1000)
    parser.add_argument("--read", action="store_true")
    options = parser.parse_args()
    # Attempts fail here as they should; whatever else is said with a traceback is an error.
    logging.getLogger("resurgam.activity").setLevel(logging.CRITICAL)
    serve = functools.partial(_serve, lease=options.lease, cache=options.cache)
    asyncio.run(_read(options.url) if options.read else serve(options.url))
