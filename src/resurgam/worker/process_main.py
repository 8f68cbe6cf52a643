"""The other side of `resurgam.worker.processes`: a process that runs attempts of activities, one after the other.

A call comes with the name of a function, which is imported here, and the recorded bytes of its arguments; what goes
back is the bytes of the result, or what is recorded of an exception, and before it any number of heartbeats. No object
of the user's crosses in between. If anything comes while an attempt is made, it is that nobody waits for it any more.
"""

import contextlib
import contextvars
import functools
import importlib
import os
import signal
import socket
import sys
import threading
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec import Raw

from resurgam.core.codec import MAX_PAYLOAD
from resurgam.core.errors import DefinitionError
from resurgam.core.event import NULL, Failure
from resurgam.core.failure import capture, in_user_code
from resurgam.runtime.definitions.definition import Activity, ActivityOptions
from resurgam.runtime.definitions.info import ActivityInfo, Attempt, enter_activity, read_details

HEAD: Final = 8
"""Bytes before each message that say how long it is."""

_PIECE: Final = 1 << 20
"""Bytes that are read at once, at most."""

importing_main = threading.Event()
"""Set while the main script is imported: it must not start processes then, which would import it in their turn."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt to be made. *main* says how the main script is imported, where the function stands in it.

    *details* are what an earlier attempt told, which *info* does not hold yet: they are read on the other side. Values
    of more than *max_payload* bytes are refused.
    """

    module: str
    qualname: str
    main: dict[str, str]
    info: ActivityInfo
    input: Raw
    details: Raw = NULL
    max_payload: int = MAX_PAYLOAD


class Beat(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A heartbeat; null says that there are no details."""

    details: Raw = NULL


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What came of it: a result, if there is no failure."""

    result: Raw = NULL
    failure: Failure | None = None


def message(content: Call | Beat | Answer | None) -> bytes:
    """Return a message as it goes over the wire.

    None says that this process is ready; the other way, that nobody waits for the attempt any more.
    """
    body = msgspec.json.encode(content)
    return len(body).to_bytes(HEAD, "big") + body


class Wire:
    """The end of the line to the worker. *lock* is held by whoever sends."""

    def __init__(self, channel: int) -> None:
        self._socket = socket.socket(fileno=channel)
        self.lock = threading.Lock()
        # A fork that outlives this process must not keep the worker from seeing that it has ended.
        os.register_at_fork(after_in_child=self._socket.close)

    def read(self) -> bytes:
        """Wait for a message; nothing if the worker has hung up."""
        return self._take(int.from_bytes(self._take(HEAD), "big"))

    def send(self, content: Beat | Answer | None) -> None:
        """Send a message."""
        self._check()
        self._socket.sendall(message(content))

    def has_news(self) -> bool:
        """Whether something has come that is not read yet, or the worker has hung up."""
        self._check()
        try:
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        return True

    def _take(self, length: int) -> bytes:
        # Not by a file, which would read ahead: what comes during an attempt must stay where `has_news` finds it.
        taken = bytearray()
        while len(taken) < length and (part := self._socket.recv(min(length - len(taken), _PIECE))):
            taken += part
        return bytes(taken) if len(taken) == length else b""

    def _check(self) -> None:
        if self._socket.fileno() < 0:
            raise RuntimeError(
                "a fork of an activity's process has no line to the worker; call this in the process itself"
            )


class Line(Attempt):
    """An attempt that is made in this process."""

    __slots__ = ("_over", "_wire")

    def __init__(self, info: ActivityInfo, wire: Wire) -> None:
        self.info = info
        self._wire = wire
        self._over = False

    def cancelled(self) -> bool:
        """Whether nobody waits for it any more."""
        return self._over or self._wire.has_news()

    def beat(self, details: Raw | None) -> None:
        """Tell the worker that it is alive. What is left over from an attempt must not speak for the next one."""
        with self._wire.lock:
            if not self._over:
                self._wire.send(Beat() if details is None else Beat(details=details))

    def answer(self, answer: Answer) -> None:
        """Tell the worker what came of it."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()  # this process may be killed before it would do so itself
        with self._wire.lock:
            self._over = True
            self._wire.send(answer)


def main(channel: int, lifeline: int) -> None:
    """Make attempts until the worker hangs up."""
    for file in (channel, lifeline):
        os.set_inheritable(file, False)  # noqa: FBT003 -- it takes no keywords
    _die_with_the_worker(lifeline)
    wire = Wire(channel)
    calls = msgspec.json.Decoder(Call)
    wire.send(None)
    while body := wire.read():
        call = calls.decode(body)
        line = Line(call.info, wire)
        line.answer(perform(call, line))


def perform(call: Call, line: Attempt) -> Answer:
    """Make one attempt. Whatever it raises is its failure."""
    try:
        activity = _find(call.module, call.qualname, tuple(call.main.items()), call.info.name)
        assert activity.signature is not None
        assert activity.function is not None
        args, kwargs = activity.signature.decode(call.input)
        line.max_payload = call.max_payload
        line.info = replace(call.info, details=read_details(call.details))
        context = contextvars.copy_context()
        context.run(enter_activity, line)
        value = context.run(activity.function, *args, **kwargs)
        return Answer(result=activity.signature.result.check(value, f"result of activity {call.info.name!r}"))
    except BaseException as error:  # noqa: BLE001 -- even sys.exit() is only a failure of the activity
        return Answer(failure=capture(in_user_code(error), limit=call.max_payload))


@functools.cache
def _find(module: str, qualname: str, main: tuple[tuple[str, str], ...], name: str) -> Activity[..., Any]:
    """Import the function; what is found there is its definition, or itself where it was registered from elsewhere."""
    try:
        if module == "__main__":
            _import_main(dict(main))
        found = attrgetter(qualname)(importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise DefinitionError(
            f"activity {name!r}: {module}.{qualname} cannot be imported by a process of its own: {error}"
        ) from error
    return found if isinstance(found, Activity) else Activity(name, found, ActivityOptions())


def _import_main(main: dict[str, str]) -> None:
    from multiprocessing import spawn  # noqa: PLC0415 -- needed here only, and much to import

    importing_main.set()
    try:
        spawn.prepare(main)
    finally:
        importing_main.clear()


def _die_with_the_worker(lifeline: int) -> None:
    """End this process, and all it started, as soon as nobody holds the other end of the *lifeline* any more.

    Where the kernel can do it by itself it is asked to: C code that holds the interpreter would keep a thread waiting.
    """
    import fcntl  # noqa: PLC0415 -- not everywhere to be had, and a program without such activities need not have it

    if hasattr(fcntl, "F_SETSIG"):
        with contextlib.suppress(OSError):
            fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
            fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC)

    def watch() -> None:
        os.read(lifeline, 1)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
