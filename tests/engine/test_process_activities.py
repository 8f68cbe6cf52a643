"""Activities in processes of their own, which are stopped where a thread would be left behind."""

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
from zoneinfo import ZoneInfo

from resurgam.core import errors
from resurgam.core import event as events
from resurgam.core.retry import RetryPolicy
from resurgam.core.state import Status
from resurgam.runtime.context.context import Context
from resurgam.runtime.definitions.info import activity_info
from resurgam.runtime.definitions.registry import Registry
from resurgam.testing.contract.bench import LEASE
from support.engines import Engines, run, types_of

ONCE = RetryPolicy(max_attempts=1)
SLOW_TO_START = 30.0
"""Real seconds that a process may take without the case losing its patience."""

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
    """Says which process holds the other end, and when it is gone; nobody sleeps for it."""

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
        """Let whoever has the other end, or takes it from now on, return at once."""
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


async def test_a_process_gives_what_was_recorded(engines: Engines) -> None:
    """Arguments and result go by their recorded bytes, typed on both sides."""
    parcel = Parcel(2, datetime(2026, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin")))
    async with engines.open(known, patience=SLOW_TO_START) as env:
        got = await run(env, send, parcel)
        assert got == Parcel(4, parcel.sent_at)
        assert got.sent_at.tzinfo == ZoneInfo("Europe/Berlin")


async def test_an_error_comes_back_from_a_process(engines: Engines) -> None:
    """Type, message, cause, traceback, and whether to try again, as from a thread."""
    async with engines.open(known, patience=SLOW_TO_START) as env:
        handle = await env.start(fail)
        got = await env.finish(handle.result())
        assert got == ["TornError", "torn at 7", "KeyError", 1, "NonRetryable", "no", "NoneType", 1]
        [torn, _] = [e for e in await handle.history() if isinstance(e, events.ActivityFailed)]
        assert "in tear" in torn.failure.traceback
        assert bytes(torn.failure.fields["weight"]) == b"7"


async def test_a_process_knows_its_activity_and_is_used_again(engines: Engines) -> None:
    """``activity.info()`` works there, and the second attempt finds the process of the first."""
    async with engines.open(known, patience=SLOW_TO_START) as env:
        pid, name, attempt, key, second, _, _, other = await run(env, ask)
        assert pid == second != os.getpid()
        assert (name, attempt) == ("whoami", 1)
        assert key != other
    assert not lives(pid)


async def test_a_call_may_choose_a_process(engines: Engines) -> None:
    """Options of one call go before those of the definition; a mock stays in this process."""
    async with engines.open(known, patience=SLOW_TO_START) as env:
        here, there = await run(env, choose)
        assert here == os.getpid() != there
        env.mock(where, calls=lambda: 0)
        assert await run(env, choose) == [0, 0]


async def test_the_death_of_a_process_is_a_failed_attempt(engines: Engines) -> None:
    """It says how the process ended, and is tried again as the policy says."""
    async with engines.open(known, patience=SLOW_TO_START) as env:
        handle = await env.start(survive)
        assert await env.finish(handle.result()) == "alive"
        retries = [e for e in await handle.history() if isinstance(e, events.ActivityRetryScheduled)]
        assert {retry.failure.type for retry in retries} == {"resurgam.core.errors.ProcessDied"}
        how = ("exit code 3", "killed by SIGSEGV", "killed by SIGKILL")
        for retry, words in zip(retries, how, strict=True):
            assert words in retry.failure.message


async def test_a_process_that_is_called_off_ends(engines: Engines) -> None:
    """The workflow cancels the activity while it runs: its process is killed, and another takes its place."""
    async with Pipe.open() as pipe, engines.open(known) as env:
        handle = await env.start(wait, pipe.folder)
        pid = await pipe.begun()
        await handle.signal("stop", "enough")
        assert await env.finish(handle.result()) == "1: enough"
        await pipe.gone()
        assert (await types_of(handle)).count("activity_cancelled") == 1
    assert not lives(pid)


async def test_a_process_that_takes_too_long_ends(engines: Engines) -> None:
    """Past its timeout it is killed, and the attempt has failed with TimeoutError."""
    async with Pipe.open() as pipe, engines.open(known) as env:
        handle = await env.start(wait, pipe.folder, 5.0)
        await pipe.begun()
        await env.advance(5)
        assert await env.finish(handle.result()) == "TimeoutError"
        await pipe.gone()


async def test_a_process_whose_lease_is_lost_ends(engines: Engines) -> None:
    """Somebody else has the activity now; what it does here is of no use any more."""
    async with Pipe.open() as pipe, engines.client(known) as (store, clock, client):
        handle = await client.start(wait, pipe.folder)
        # It renews after a third of this, which is too late.
        async with engines.serve(store, clock, known, lease=3 * (LEASE / 1000 + 1)) as env:
            await pipe.begun()
            clock.move_to(clock.now() + LEASE)
            assert len(await store.claim_activities("thief", ["default"], 10)) == 1
            await env.advance(1)
            await pipe.gone()
        assert (await types_of(handle))[1:] == ["activity_scheduled", "listen_started", "race_started"]


async def test_a_process_that_does_not_end_in_time_is_given_back(engines: Engines) -> None:
    """A worker that drains kills what runs beyond its grace, and the next one runs it as the same attempt."""
    async with Pipe.open() as pipe, engines.client(known) as (store, clock, client):
        handle = await client.start(wait, pipe.folder)
        async with engines.serve(store, clock, known, grace=0):
            pid = await pipe.begun()
        assert not lives(pid)
        await pipe.gone()
        pipe.enough()
        async with engines.serve(store, clock, known, patience=SLOW_TO_START) as env:
            assert await env.finish(handle.result()) == "0: enough"
        assert "activity_retry_scheduled" not in await types_of(handle)


async def test_details_of_a_process_reach_the_next_attempt(engines: Engines) -> None:
    """One that raised, or died: what it told last is known to the next, under the same idempotency key."""
    async with engines.open(known, patience=SLOW_TO_START) as env:
        handle = await env.start(tell)
        [details, key], nonsense = await env.finish(handle.result())
        assert details == {"seen": [1, 2, 3]}
        [first, *_] = history = await handle.history()
        assert isinstance(first, events.WorkflowStarted)
        assert key.startswith(first.run_id)
        assert "heartbeat of activity 'tells_nonsense'[0]" in nonsense
        retries = [e for e in history if isinstance(e, events.ActivityRetryScheduled)]
        assert retries[0].next_at - retries[0].at == 5000


async def test_a_process_that_says_nothing_ends(engines: Engines) -> None:
    """Each heartbeat gives it its time again; without one it is killed, and the attempt has failed."""
    async with Pipe.open() as pipe, engines.open(known) as env:
        handle = await env.start(listen, pipe.folder, 3)
        for number in range(3):
            assert await pipe.number() == number
            await env.advance(4.999)
            pipe.touch(f"beat-{number}")
        await pipe.begun()
        await env.advance(4.999)
        assert (await handle.describe()).status is Status.RUNNING
        await env.advance(0.001)
        said = "activity 'beats' has said nothing for 5 s, its heartbeat timeout"
        assert await env.finish(handle.result()) == said
        await pipe.gone()


async def test_a_process_that_is_asked_to_end_may_find_out_why(engines: Engines) -> None:
    """A handler of SIGTERM sees that the attempt is cancelled; before that it was not."""
    async with Pipe.open() as pipe, engines.open(known) as env:
        handle = await env.start(ask_to_end, pipe.folder)
        await pipe.begun()
        await handle.signal("stop", "enough")
        assert await env.finish(handle.result()) == "1"
        await pipe.gone()
        assert pipe.read("told") == "[False, True, True]"


async def test_the_result_of_a_process_that_comes_after_the_end_is_recorded(engines: Engines) -> None:
    """It runs on when its workflow ends, and nobody is told of its result."""
    async with Pipe.open() as pipe, engines.open(known, patience=SLOW_TO_START) as env:
        handle = await env.engine.start(leave, pipe.folder)
        await pipe.begun()
        await handle.signal("go", "gone")
        assert await handle.result() == "gone"
        assert not (await handle.describe()).deactivated
        pipe.enough()
        await env.settle()
        assert (await types_of(handle))[-3:] == ["workflow_completed", "activity_completed", "workflow_deactivated"]
        assert await handle.result() == "gone"
