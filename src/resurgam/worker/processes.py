"""Run plain functions in processes of their own, which can be stopped.

The processes are reused, and there are at most as many as processors. One that is interrupted is ended, by SIGTERM and
after a short grace by SIGKILL, with everything that it started; another takes its place. Not a ``ProcessPoolExecutor``:
there the death of one process breaks all others, and a single attempt cannot be ended. They are started by exec, never
by fork alone: a fork of a process with threads may hang on any of their locks.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec import Raw

from resurgam.core.errors import DefinitionError, ProcessDied
from resurgam.core.event import NULL
from resurgam.runtime.definitions.definition import Activity
from resurgam.worker.process_main import HEAD, Answer, Beat, Call, message
from resurgam.worker.tasks import Grace, Tasks

_GRACE: Final = 1.0
"""Seconds between SIGTERM and SIGKILL."""

_POLL: Final = 0.005
"""Seconds between two polls of a process that is about to end."""

# The path first: the package itself may be found only by way of this process's path.
_BOOT: Final = (
    "import json, sys; sys.path[:], sys.argv[:], files = json.loads(sys.argv[1]); "
    "from resurgam.worker.process_main import main; main(*files)"
)


_messages: Final[msgspec.json.Decoder[Beat | Answer]] = msgspec.json.Decoder(Beat | Answer)


class Process:
    """One process that runs one attempt at a time."""

    def __init__(self, lifeline: int) -> None:
        import json  # noqa: PLC0415 -- only a worker that runs activities in processes pays for the import

        self._wire, theirs = socket.socketpair()
        with theirs:
            files = (theirs.fileno(), lifeline)
            arguments = json.dumps([sys.path, sys.argv, files])
            flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing
            # A group of its own: Ctrl-C goes to the worker alone, and what the function starts can be ended with it.
            self._process = subprocess.Popen(  # noqa: S603 -- the command is this very Python
                [sys.executable, *flags, "-c", _BOOT, arguments],
                pass_fds=files,
                process_group=0,
                stdin=subprocess.DEVNULL,
            )
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    @property
    def pid(self) -> int:
        """The id of the process, and of its group."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can run an attempt."""
        return self._process.poll() is None and not (self._streams is not None and self._streams[0].at_eof())

    async def ready(self, name: str) -> None:
        """Wait until it has started."""
        if self._streams is None:
            self._streams = await asyncio.open_unix_connection(sock=self._wire)
            await self._read(name)

    async def call(self, call: Call, beat: Callable[[Raw | None], object]) -> Answer:
        """Run an attempt in it; *beat* is called for every heartbeat."""
        assert self._streams is not None
        with contextlib.suppress(ConnectionError):  # it has died; the next read says how
            self._streams[1].write(message(call))
            await self._streams[1].drain()
        while True:
            received = _messages.decode(await self._read(call.info.name))
            if isinstance(received, Answer):
                return received
            beat(None if received.details == NULL else received.details.copy())

    def abandon(self) -> None:
        """Tell it that its attempt is abandoned, and end it."""
        if self._streams is not None and not self._streams[1].is_closing():
            self._streams[1].write(message(None))
        self.send(signal.SIGTERM)

    def disconnect(self) -> None:
        """Close the connection, so that it ends by itself when it is done."""
        if self._streams is None:
            self._wire.close()
        else:
            self._streams[1].close()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to it, and to what it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    async def end(self, *, group: bool) -> None:
        """Wait until it has ended, and kill it after the grace; with *group*, also what it started."""
        until, killed = asyncio.get_running_loop().time() + _GRACE, False
        while self._process.poll() is None or (group and not killed and self._has_group()):
            if not killed and asyncio.get_running_loop().time() > until:
                self.send(signal.SIGKILL)
                killed = True
            await asyncio.sleep(_POLL)
        self.disconnect()

    async def _read(self, name: str) -> bytes:
        assert self._streams is not None
        try:
            head = await self._streams[0].readexactly(HEAD)
            return await self._streams[0].readexactly(int.from_bytes(head, "big"))
        except (asyncio.IncompleteReadError, ConnectionError):
            # Its end of the connection closes a moment before its exit code is known.
            await self.end(group=False)
            raise ProcessDied(name, _exit_text(self._process.returncode)) from None

    def _has_group(self) -> bool:
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


class Processes:
    """The processes of one worker, each started when it is first needed."""

    def __init__(self, limit: int) -> None:
        self._free = asyncio.Semaphore(limit)
        self._idle: list[Process] = []
        self._ending = Tasks()
        self._lifeline: tuple[int, int] | None = None

    @contextlib.asynccontextmanager
    async def borrow(self, name: str) -> AsyncIterator[Process]:
        """Wait for a free process; it is ended if its use is interrupted."""
        await self._free.acquire()
        process: Process | None = None
        try:
            process = self._take()
            await process.ready(name)
            yield process
        except BaseException:
            if process is None:
                self._free.release()
            else:
                process.abandon()
                self._ending.spawn(self._reap(process), f"end of process {process.pid}")
            raise
        self._idle.append(process)
        self._free.release()

    async def close(self) -> None:
        """End all processes: idle ones by themselves, the others have been interrupted."""
        while self._idle:
            process = self._idle.pop()
            process.disconnect()
            self._ending.spawn(process.end(group=False), f"end of process {process.pid}")
        # Longer than it takes to kill them, in case one is slow to end.
        grace = Grace(5 * _GRACE)
        grace.begin()
        await self._ending.finish(grace)
        if self._lifeline is not None:
            for file in self._lifeline:
                os.close(file)
            self._lifeline = None

    def _take(self) -> Process:
        while self._idle:
            process = self._idle.pop()
            if process.alive:
                return process
            self._ending.spawn(process.end(group=False), f"end of process {process.pid}")
        if self._lifeline is None:
            self._lifeline = os.pipe()
        return Process(self._lifeline[0])

    async def _reap(self, process: Process) -> None:
        try:
            await process.end(group=True)
        finally:
            self._free.release()


def import_path_of(activity: Activity[..., Any]) -> dict[str, Any]:
    """Return how another process imports the function of an activity, as fields of a `Call`."""
    function: Any = activity.function
    module, qualname = function.__module__, function.__qualname__
    try:
        found = attrgetter(qualname)(sys.modules[module])
    except (KeyError, AttributeError):
        found = None
    if getattr(found, "function", found) is not function:
        raise DefinitionError(
            f"activity {activity.name!r}: its process cannot import its function, which is not found as "
            f"{module}.{qualname}; define it at module level, under its own name, with @activity as the outermost decorator"
        )
    return {"module": module, "qualname": qualname, "main": _main(activity.name) if module == "__main__" else {}}


def _main(name: str) -> dict[str, str]:
    """Return how the main script can be imported, in the terms of multiprocessing."""
    main = sys.modules["__main__"]
    known = None if main.__spec__ is None else main.__spec__.name
    if known is not None and not known.endswith("__main__"):
        return {"init_main_from_name": known}
    path = getattr(main, "__file__", None)
    if known is not None or path is None or not os.path.exists(path):  # noqa: PTH110 -- may be '<stdin>'
        raise DefinitionError(
            f"activity {name!r} is defined in a main program that another process cannot import "
            "(a notebook, `python -c` or a __main__.py); define it in a module"
        )
    return {"init_main_from_path": os.path.abspath(path)}  # noqa: PTH100 -- symbolic links stay as they are


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _exit_text(code: int | None) -> str:
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    name = next((known.name for known in signal.Signals if known == -code), f"signal {-code}")
    return f"was killed by {name}" + (" (was the machine out of memory?)" if -code == signal.SIGKILL else "")
