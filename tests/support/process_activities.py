"""Activities that run in processes of their own, and the pipe by which a test follows such a process."""

import asyncio
import contextlib
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from resurgam.core import errors
from resurgam.core.retry import RetryPolicy
from resurgam.runtime.context.context import Context
from resurgam.runtime.definitions.info import activity_info
from resurgam.runtime.registry import Registry
from support.limits import HANGS

ONCE = RetryPolicy(max_attempts=1)
SLOW_TO_START = HANGS
"""Real seconds that a process may take without a test losing its patience."""

# At module level, because another process imports the functions by their names.
known = Registry()


@dataclass
class Parcel:
    """A value of the user's own."""

    weight: int
    sent_at: datetime


class TornError(Exception):
    """An error of the user's own, with a field."""

    def __init__(self, weight: int) -> None:
        super().__init__(f"torn at {weight}")
        self.weight = weight


@known.activity(executor="process")
def double(parcel: Parcel) -> Parcel:
    return Parcel(2 * parcel.weight, parcel.sent_at)


@known.activity(executor="process", retry=ONCE)
def tear(weight: int) -> None:
    try:
        raise KeyError("string")
    except KeyError as error:
        raise TornError(weight) from error


@known.activity(executor="process")
def refuse() -> None:
    raise errors.NonRetryable("no")


@known.activity(executor="process")
def whoami() -> list[Any]:
    info = activity_info()
    return [os.getpid(), info.name, info.attempt, info.idempotency_key]


@known.activity
def where() -> int:
    return os.getpid()


@known.activity(executor="process", retry=RetryPolicy(max_attempts=4, initial_interval=1))
def dies() -> str:
    attempt = activity_info().attempt
    if attempt == 1:
        os._exit(3)
    if attempt < 4:
        os.kill(os.getpid(), signal.SIGSEGV if attempt == 2 else signal.SIGKILL)
    return "alive"


@known.activity(executor="process", retry=ONCE)
def hangs(folder: str) -> str:
    """Hold the pipe in *folder* open until there is a file called enough."""
    enough = Path(folder, "enough")
    if not enough.exists():
        with Path(folder, "pipe").open("w") as pipe:
            pipe.write(f"{os.getpid()}\n")
            pipe.flush()
            while not enough.exists():
                time.sleep(0.01)
    return "enough"


@known.activity(executor="process", retry=RetryPolicy(max_attempts=4, initial_interval=1))
def counts() -> list[Any]:
    """Fail, die and hang, and find each time what was told before."""
    info = activity_info()
    if info.attempt == 4:
        return [info.details, info.idempotency_key]
    known.activity.heartbeat({"seen": [*(info.details or {"seen": []})["seen"], info.attempt]})
    known.activity.heartbeat()
    if info.attempt == 2:
        os._exit(3)
    raise errors.RetryAfter(5, "not yet") if info.attempt == 1 else ValueError("at last")


@known.activity(executor="process", retry=ONCE)
def beats(folder: str, times: int) -> str:
    """Say something *times* times, each time when the case asks for it by a file; then hang."""
    with Path(folder, "pipe").open("w") as pipe:
        for number in range(times):
            pipe.write(f"{number}\n")
            pipe.flush()
            while not Path(folder, f"beat-{number}").exists():
                time.sleep(0.001)
            known.activity.heartbeat(number)
        pipe.write(f"{os.getpid()}\n")
        pipe.flush()
        while True:
            time.sleep(0.01)


@known.activity(executor="process", retry=ONCE)
def handles_sigterm(folder: str) -> None:
    """Say what it finds out when it is asked to end, and end."""
    told = [known.activity.cancelled()]

    def asked(*_: object) -> None:
        told.append(known.activity.cancelled())
        try:
            known.activity.heartbeat()
        except asyncio.CancelledError:
            told.append(True)
        Path(folder, "told").write_text(str(told))
        os._exit(0)

    signal.signal(signal.SIGTERM, asked)
    hangs(folder)


@known.activity(executor="process", retry=ONCE)
def tells_nonsense() -> str:
    try:
        known.activity.heartbeat([object()])
    except errors.SerializationError as error:
        return str(error)
    return "nothing happened"


@known.workflow
async def tell(ctx: Context) -> list[Any]:
    return [await ctx.activity(counts), await ctx.activity(tells_nonsense)]


@known.workflow
async def listen(ctx: Context, folder: str, times: int) -> str:
    try:
        return await ctx.activity(beats.options(heartbeat_timeout=5), folder, times)
    except errors.ActivityFailed as failed:
        return str(failed.cause)


@known.workflow
async def ask_to_end(ctx: Context, folder: str) -> str:
    index, _ = await ctx.race(ctx.activity(handles_sigterm, folder), ctx.listen("stop", type=str))
    return str(index)


@known.workflow
async def leave(ctx: Context, folder: str) -> str:
    ctx.activity(hangs, folder)
    return await ctx.listen("go", type=str)


@known.workflow
async def send(ctx: Context, parcel: Parcel) -> Parcel:
    return await ctx.activity(double, parcel)


@known.workflow
async def fail(ctx: Context) -> list[Any]:
    told: list[Any] = []
    for weight in (7, None):
        try:
            await (ctx.activity(refuse) if weight is None else ctx.activity(tear, weight))
        except errors.ActivityFailed as failed:
            cause = cast("BaseException", failed.cause)
            told += [type(cause).__name__, str(cause), type(cause.__cause__).__name__, failed.attempts]
    return told


@known.workflow
async def ask(ctx: Context) -> list[Any]:
    return [*await ctx.activity(whoami), *await ctx.activity(whoami)]


@known.workflow
async def choose(ctx: Context) -> list[int]:
    return [await ctx.activity(where), await ctx.activity(where.options(executor="process"))]


@known.workflow
async def survive(ctx: Context) -> str:
    return await ctx.activity(dies)


@known.workflow
async def wait(ctx: Context, folder: str, timeout: float = 86400) -> str:
    hanging = ctx.activity(hangs.options(timeout=timeout), folder)
    try:
        index, value = await ctx.race(hanging, ctx.listen("stop", type=str))
    except errors.ActivityFailed as failed:
        return type(failed.cause).__name__
    return f"{index}: {value}"


class Pipe:
    """Tell which process holds the other end, and when it is gone, without polling."""

    def __init__(self, folder: str, reader: asyncio.StreamReader) -> None:
        self.folder = folder
        self._reader = reader

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls) -> AsyncIterator["Pipe"]:
        """Make one, in a folder of its own."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "pipe")
            os.mkfifo(path)
            reader = asyncio.StreamReader()
            file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), file
            )
            try:
                yield cls(folder, reader)
            finally:
                transport.close()

    def enough(self) -> None:
        """Let the process at the other end, and later ones, return at once."""
        self.touch("enough")

    def touch(self, name: str) -> None:
        """Make a file that the other side waits for."""
        Path(self.folder, name).touch()

    def read(self, name: str) -> str:
        """Return what a file holds that the other side has written."""
        return Path(self.folder, name).read_text()

    async def number(self) -> int:
        """Wait for a number that the other side writes."""
        async with asyncio.timeout(SLOW_TO_START):
            return int(await self._reader.readline())

    async def begun(self) -> int:
        """Wait until a process has taken the other end; return its id."""
        return await self.number()

    async def gone(self) -> None:
        """Wait until that process has ended."""
        async with asyncio.timeout(SLOW_TO_START):
            assert await self._reader.read() == b""


def lives(pid: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
