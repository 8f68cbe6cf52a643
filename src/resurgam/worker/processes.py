"""Runs plain functions in processes of their own, which can be stopped.

The processes are reused, and there are no more of them than processors. One that is interrupted is ended: it gets
SIGTERM, and SIGKILL after a short grace, with everything that it started itself; another takes its place. Not a
``ProcessPoolExecutor``, in which the death of one process breaks all others, and none is ever ended for an attempt's sake.
They are started by exec, never by fork alone: a fork of a process with threads may hang on any of their locks.
"""

import asyncio
import contextlib
import json
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
from resurgam.worker.process_main import HEAD, Answer, Beat, Call, importing_main, message
from resurgam.worker.tasks import Grace, Tasks

_GRACE: Final = 1.0
"""Seconds between SIGTERM and SIGKILL."""

_LOOK: Final = 0.005
"""Seconds between two looks at a process that is about to end."""

# The path first: the package itself may stand where only this process looks.
_BOOT: Final = (
    "import json, sys; sys.path[:], sys.argv[:], files = json.loads(sys.argv[1]); "
    "from resurgam.worker.process_main import main; main(*files)"
)


_messages: Final[msgspec.json.Decoder[Beat | Answer]] = msgspec.json.Decoder(Beat | Answer)


class Process:
    """One process that runs one attempt at a time."""

    def __init__(self, lifeline: int) -> None:
        self._wire, theirs = socket.socketpair()
        with theirs:
            files = (theirs.fileno(), lifeline)
            told = json.dumps([sys.path, sys.argv, files])
            flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing
            # A group of its own: Ctrl-C is the worker's to hear, and what the function starts can be ended with it.
            self._process = subprocess.Popen(  # noqa: S603 -- the command is this very Python
                [sys.executable, *flags, "-c", _BOOT, told],
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
        """Whether it can be asked."""
        return self._process.poll() is None and not (self._streams is not None and self._streams[0].at_eof())

    async def ready(self, name: str) -> None:
        """Wait until it has started."""
        if self._streams is None:
            self._streams = await asyncio.open_unix_connection(sock=self._wire)
            await self._hear(name)

    async def ask(self, call: Call, beat: Callable[[Raw | None], object]) -> Answer:
        """Have it make an attempt; *beat* is called for every heartbeat until it ends."""
        assert self._streams is not None
        with contextlib.suppress(ConnectionError):  # it has died; the next line says how
            self._streams[1].write(message(call))
            await self._streams[1].drain()
        while True:
            told = _messages.decode(await self._hear(call.info.name))
            if isinstance(told, Answer):
                return told
            beat(None if told.details == NULL else told.details.copy())

    def call_off(self) -> None:
        """Let it know that nobody waits for its attempt any more, and end it."""
        if self._streams is not None and not self._streams[1].is_closing():
            self._streams[1].write(message(None))
        self.send(signal.SIGTERM)

    def hang_up(self) -> None:
        """Let it end by itself, when it is done."""
        if self._streams is None:
            self._wire.close()
        else:
            self._streams[1].close()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to it, and to what it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    async def end(self, *, group: bool) -> None:
        """Wait until it is gone, but no longer than the grace; with *group*, what it has started as well."""
        until, killed = asyncio.get_running_loop().time() + _GRACE, False
        while self._process.poll() is None or (group and not killed and self._has_group()):
            if not killed and asyncio.get_running_loop().time() > until:
                self.send(signal.SIGKILL)
                killed = True
            await asyncio.sleep(_LOOK)
        self.hang_up()

    async def _hear(self, name: str) -> bytes:
        assert self._streams is not None
        try:
            head = await self._streams[0].readexactly(HEAD)
            return await self._streams[0].readexactly(int.from_bytes(head, "big"))
        except (asyncio.IncompleteReadError, ConnectionError):
            # Its end of the wire closes a moment before it can be asked how it has ended.
            await self.end(group=False)
            raise ProcessDied(name, _how(self._process.returncode)) from None

    def _has_group(self) -> bool:
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


class Processes:
    """The processes of one worker; none is started before it is needed."""

    def __init__(self, limit: int) -> None:
        self._places = asyncio.Semaphore(limit)
        self._idle: list[Process] = []
        self._ending = Tasks()
        self._lifeline: tuple[int, int] | None = None

    @contextlib.asynccontextmanager
    async def borrow(self, name: str) -> AsyncIterator[Process]:
        """Wait for a process that is free. If what is done with it is interrupted, it is ended."""
        await self._places.acquire()
        process: Process | None = None
        try:
            process = self._take()
            await process.ready(name)
            yield process
        except BaseException:
            if process is None:
                self._places.release()
            else:
                process.call_off()
                self._ending.spawn(self._bury(process), f"the end of process {process.pid}")
            raise
        self._idle.append(process)
        self._places.release()

    async def close(self) -> None:
        """End all. Those that are idle are let go, the others have been interrupted."""
        while self._idle:
            process = self._idle.pop()
            process.hang_up()
            self._ending.spawn(process.end(group=False), f"the end of process {process.pid}")
        # Longer than it takes to kill them, should one be slow to go.
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
            self._ending.spawn(process.end(group=False), f"the end of process {process.pid}")
        if self._lifeline is None:
            self._lifeline = os.pipe()
        return Process(self._lifeline[0])

    async def _bury(self, process: Process) -> None:
        try:
            await process.end(group=True)
        finally:
            self._places.release()


def place_of(activity: Activity[..., Any]) -> dict[str, Any]:
    """Return where another process finds the function of an activity, as the fields of a `Call`."""
    function: Any = activity.function
    module, qualname = function.__module__, function.__qualname__
    try:
        found = attrgetter(qualname)(sys.modules[module])
    except (KeyError, AttributeError):
        found = None
    if getattr(found, "function", found) is not function:
        raise DefinitionError(
            f"activity {activity.name!r}: a process of its own would look for its function under {module}.{qualname}, "
            "where it is not to be found; define it at module level, under its own name, with @activity on top"
        )
    return {"module": module, "qualname": qualname, "main": _main(activity.name) if module == "__main__" else {}}


def _main(name: str) -> dict[str, str]:
    """Say how the main script can be imported, in the words of multiprocessing."""
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


def check_not_imported() -> None:
    """Refuse to open an engine while a process of an activity's own imports the main program for its function."""
    if importing_main.is_set():
        raise DefinitionError(
            "a process of an activity's own imports the main program, which thereby runs a second time; "
            'put what it does under `if __name__ == "__main__":`'
        )


def processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _how(code: int | None) -> str:
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    name = next((known.name for known in signal.Signals if known == -code), f"signal {-code}")
    return f"was killed by {name}" + (" (was the machine out of memory?)" if -code == signal.SIGKILL else "")
