"""A shop as a process of its own: its workflows, its activities, and the ways in which the tests let it die.

``python shop.py URL`` serves until it is killed; ``--once`` runs one small workflow to its end, ``--acks N`` sends
signals and says when each is acknowledged. Every effect is one line in the file ``SHOP_EFFECTS``. ``SHOP_DIE``, such as
``commit:before:3``, ends the process without a word at the third call of that verb of the store; ``SHOP_STOP`` stops it,
as SIGSTOP does, in the midst of the first long activity or operation; ``SHOP_GATE`` is a file without which no parcel is
packed; ``SHOP_PATIENCE`` is how many seconds it waits for a locked database.
"""

import argparse
import asyncio
import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from resurgam import Break, Context, Continue, Engine, Registry
from resurgam.runtime.definitions.info import activity_info
from resurgam.runtime.system import SystemClock
from resurgam.store.open import open_store
from resurgam.store.sqlite import connection, writer
from resurgam.worker import watchdog
from support.limits import HANGS

registry = Registry()
activity, workflow = registry.activity, registry.workflow

SMALL = "small-1"
APART = "apart"
"""The queue of what is done by a process of its own."""

FAT = 50_000


@dataclass
class Effect:
    """One line of the effects file."""

    workflow: str
    name: str
    key: str
    attempt: int
    pid: int


def _append(effect: Effect) -> None:
    """Write one line whole: O_APPEND keeps the lines of several processes apart.

    A kill may still cut a line that crosses a page; the next writer begins a new line.
    """
    file = os.open(os.environ["SHOP_EFFECTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, ("\n" + json.dumps(effect.__dict__) + "\n").encode())
    finally:
        os.close(file)


def note() -> None:
    """Write down that an activity was begun."""
    info = activity_info()
    _append(Effect(info.workflow_id, info.name, info.idempotency_key, info.attempt, os.getpid()))


def stop_once() -> None:
    """Stop this process until it is told to go on, if it is one that stops and has not yet."""
    if os.environ.pop("SHOP_STOP", None):
        os.kill(os.getpid(), signal.SIGSTOP)


@activity
async def reserve(number: int) -> int:
    note()
    return number + 1


@activity
def price(number: int) -> int:
    note()
    return number * 2


@activity
async def pack(number: int, part: int) -> int:
    note()
    gate = Path(os.environ.get("SHOP_GATE", "/"))
    while not gate.exists():
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1 + 0.1 * part)
    return number * 10 + part


@activity
async def ask(number: int) -> int:
    note()
    await asyncio.sleep(0.1)
    return -number


@activity
async def linger(seconds: float) -> int:
    note()
    stop_once()
    await asyncio.sleep(seconds)
    return os.getpid()


@activity
async def fatten(part: int) -> str:
    note()
    return str(part) * FAT


async def stamp(entity_id: str, number: int, seconds: float) -> int:
    """The operation: leaves a trace, takes its time."""
    _append(Effect(entity_id, "stamp", "", 1, os.getpid()))
    stop_once()
    await asyncio.sleep(seconds)
    return number * 7


async def enter(ctx: Context, entered: list[int]) -> Continue[list[int]] | Break[list[int]]:
    """Take one number, reserve it twice at once, and keep it."""
    number = await ctx.listen("enter", type=int)
    if number < 0:
        return Break(entered)
    first, second = await asyncio.gather(ctx.activity(reserve, number), ctx.activity(price, number))
    ctx.set("last", number)
    return Continue([*entered, first + second])


@workflow
async def ledger(ctx: Context) -> list[int]:
    """A book that is kept for as long as numbers come; what is entered is forgotten soon."""
    return await ctx.loop(enter, [], forget_every=3, keep_forgotten=5)


@workflow
async def order(ctx: Context, number: int) -> list[int]:
    """A bit of everything."""
    ctx.set("stage", "begun")
    reserved = await ctx.activity(reserve, number)
    priced = await ctx.activity(price, reserved)
    parts = await asyncio.gather(*(ctx.activity(pack, priced, part) for part in range(3)))
    await ctx.sleep(0.2)
    first, answer = await ctx.race(ctx.activity(ask, number), ctx.listen("never", type=int))
    second, _ = await ctx.race(ctx.sleep(0.2), ctx.activity(linger, 60.0))
    approved = await ctx.listen("approve", type=int)
    stamped = await ctx.run(stamp, ctx.info.entity_id, number, 0.1)
    ctx.set("stage", "done")
    return [reserved, priced, *parts, first, answer, second, approved, stamped]


def ordered(number: int, approved: int) -> list[int]:
    """What `order` must return."""
    priced = (number + 1) * 2
    return [number + 1, priced, *(priced * 10 + part for part in range(3)), 0, -number, 0, approved, number * 7]


@workflow
async def small(ctx: Context, number: int) -> list[int]:
    """Step by step, so that there is one order of its commands only."""
    ctx.set("stage", "begun")
    reserved = await ctx.activity(reserve, number)
    await ctx.sleep(0.01)
    stamped = await ctx.run(stamp, ctx.info.entity_id, reserved, 0.0)
    priced = await ctx.activity(price, stamped)
    ctx.set("stage", "done")
    return [reserved, stamped, priced]


SMALL_RESULT = [5, 35, 70]  # of 4


@workflow
async def long_activity(ctx: Context, seconds: float) -> int:
    """Returns the process that did it."""
    return await ctx.activity(linger, seconds)


@workflow
async def long_operation(ctx: Context, seconds: float) -> int:
    return await ctx.run(stamp, ctx.info.entity_id, 6, seconds)


def stop(entity_id: str) -> int:
    """The operation that holds its whole process up."""
    _append(Effect(entity_id, "stop", "", 1, os.getpid()))
    stop_once()
    return 6


@workflow
async def long_pause(ctx: Context) -> int:
    """A worker that was stopped in the middle of it has the answer in hand when it goes on."""
    return await ctx.run(stop, ctx.info.entity_id)


@workflow
async def apart(ctx: Context, number: int) -> list[int]:
    """Here and elsewhere in turn: what is done elsewhere is handed in by itself."""
    reserved = await ctx.activity(reserve, number)
    priced = await ctx.activity(price.options(queue=APART), reserved)
    stamped = await ctx.run(stamp, ctx.info.entity_id, priced, 0.0)
    again = await ctx.activity(reserve.options(queue=APART), stamped)
    return [reserved, priced, stamped, again]


APART_RESULT = [5, 10, 70, 71]  # of 4


@workflow
async def fat(ctx: Context, parts: int) -> list[int]:
    """Each step of it needs room on the disk."""
    return [len(await ctx.activity(fatten, part)) for part in range(parts)]


@workflow
async def letters(ctx: Context) -> str:
    """Never ends by itself."""
    return await ctx.listen("last", type=str)


class Mortal:
    """A store that ends its process just before, or just after, the n-th call of one verb."""

    def __init__(self, store, plan: str) -> None:
        self._store = store
        self._verb, self._when, number = plan.split(":")
        self._left = int(number)

    def submit(self, part, done) -> None:
        """Commit, and die before it is written or before its answer is heard."""
        self._left -= self._verb == "commit"
        dies = self._verb == "commit" and self._left == 0
        if dies and self._when == "before":
            os._exit(9)
        self._store.submit(part, (lambda _: os._exit(9)) if dies else done)

    def __getattr__(self, name: str):
        verb = getattr(self._store, name)
        if name != self._verb:
            return verb

        async def mortal(*args):
            self._left -= 1
            if self._left == 0 and self._when == "before":
                os._exit(9)
            answer = await verb(*args)
            if self._left == 0:
                os._exit(9)
            return answer

        return mortal


def _engine(url: str, lease: float, queue: str, cache: int = 1000) -> Engine:
    plan = os.environ.get("SHOP_DIE")
    if plan is None:
        return Engine(url, registry=registry, lease=lease, queues=[queue], cache_size=cache)
    store = open_store(url, SystemClock(), name=f"mortal-{os.getpid()}", lease=round(lease * 1000))
    return Engine(Mortal(store, plan), registry=registry, lease=lease, queues=[queue])


async def _serve(url: str, lease: float, queue: str, cache: int) -> None:
    async with _engine(url, lease, queue, cache) as engine:
        await engine.run()


async def _once(url: str, lease: float, queue: str) -> None:
    """Run the small workflow to its end, then leave without closing anything: the WAL stays to be looked at."""
    async with _engine(url, lease, queue) as engine:
        handle = await engine.start(small, 4, id=SMALL, if_exists="attach")
        await handle.result(timeout=HANGS)
        os._exit(0)


async def _acks(url: str, number: int) -> None:
    """Send signals one after the other; each that is acknowledged is one write to the effects file."""
    async with Engine(url, registry=registry, worker=False) as engine:
        handle = await engine.start(letters, id="letters")
        for _ in range(number):
            await handle.signal("letter", "x" * 100)
            _append(Effect("letters", "ack", "", 1, os.getpid()))
        os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--lease", type=float, default=2)
    parser.add_argument("--queue", default="default")
    parser.add_argument("--cache", type=int, default=1000)
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--acks", type=int)
    options = parser.parse_args()
    connection.BUSY_TIMEOUT = writer.BUSY_TIMEOUT = float(os.environ.get("SHOP_PATIENCE") or HANGS)
    watchdog.REPORT_AFTER = HANGS  # a busy machine holds loops up too, and what a shop says is compared
    if options.acks:
        asyncio.run(_acks(options.url, options.acks))
    elif options.once:
        asyncio.run(_once(options.url, options.lease, options.queue))
    else:
        asyncio.run(_serve(options.url, options.lease, options.queue, options.cache))


if __name__ == "__main__":
    main()
