"""The main program of a process that `resurgam.worker.processes` starts: run attempts of activities, one by one.

A call names a function, which is imported here, and has the recorded bytes of its arguments. The answer is the bytes of
the result, or the recorded failure, after any number of heartbeats. No object of the user crosses the connection. A
message that arrives while an attempt runs means that the attempt is abandoned.
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
from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from resurgam.core.codec import MAX_PAYLOAD
from resurgam.core.errors import DefinitionError
from resurgam.core.event import NULL, Failure
from resurgam.core.failure import capture, in_user_code
from resurgam.runtime.definitions.definition import Activity, ActivityOptions
from resurgam.runtime.definitions.info import ActivityInfo, enter_activity, read_details

HEAD: Final = 8
"""Bytes before each message that hold its length."""

_PIECE: Final = 1 << 20
"""The most bytes that are read at once."""

importing_main = threading.Event()
"""Set while the main script is imported: it must not start processes then, which would import it in turn."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt to run. *main* says how to import the main script, if that defines the function.

    *details* are those of an earlier attempt, which *info* does not hold yet: they are decoded by the process. Values
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
    """A heartbeat; null means no details."""

    details: Raw = NULL


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The result of an attempt, if there is no failure."""

    result: Raw = NULL
    failure: Failure | None = None


def message(content: Call | Beat | Answer | None) -> bytes:
    """Return a message in its form on the connection.

    None means that the process is ready; from the worker, that the attempt is abandoned.
    """
    body = msgspec.json.encode(content)
    return len(body).to_bytes(HEAD, "big") + body


class Wire:
    """The connection to the worker. *lock* is held while sending."""

    def __init__(self, channel: int) -> None:
        self._socket = socket.socket(fileno=channel)
        self.lock = threading.Lock()
        # A fork that outlives this process must not keep the worker from seeing that it has ended.
        os.register_at_fork(after_in_child=self._socket.close)

    def read(self) -> bytes:
        """Wait for a message; empty if the worker has disconnected."""
        return self._take(int.from_bytes(self._take(HEAD), "big"))

    def send(self, content: Beat | Answer | None) -> None:
        """Send a message."""
        self._check()
        self._socket.sendall(message(content))

    def has_message(self) -> bool:
        """Whether a message waits to be read, or the worker has disconnected."""
        self._check()
        try:
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        return True

    def _take(self, length: int) -> bytes:
        # Not by a file, which would read ahead: a message during an attempt must stay where `has_message` finds it.
        taken = bytearray()
        while len(taken) < length and (part := self._socket.recv(min(length - len(taken), _PIECE))):
            taken += part
        return bytes(taken) if len(taken) == length else b""

    def _check(self) -> None:
        if self._socket.fileno() < 0:
            raise RuntimeError(
                "a fork of an activity's process has no connection to the worker; call this in the process itself"
            )


class ProcessAttempt:
    """An attempt that runs in this process."""

    __slots__ = ("_over", "_wire", "info", "max_payload")

    def __init__(self, info: ActivityInfo, wire: Wire, max_payload: int = MAX_PAYLOAD) -> None:
        self.info = info
        self.max_payload = max_payload
        self._wire = wire
        self._over = False

    def cancelled(self) -> bool:
        """Whether the attempt is abandoned."""
        return self._over or self._wire.has_message()

    def beat(self, details: Raw | None) -> None:
        """Send a heartbeat, unless the attempt has ended: a thread it left behind must not speak for the next one."""
        with self._wire.lock:
            if not self._over:
                self._wire.send(Beat() if details is None else Beat(details=details))

    def answer(self, answer: Answer) -> None:
        """Send the answer."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()  # this process may be killed before it would do so by itself
        with self._wire.lock:
            self._over = True
            self._wire.send(answer)


def main(channel: int, lifeline: int) -> None:
    """Run attempts until the worker disconnects."""
    for file in (channel, lifeline):
        os.set_inheritable(file, False)  # noqa: FBT003 -- it takes no keywords
    _exit_with_worker(lifeline)
    wire = Wire(channel)
    calls = msgspec.json.Decoder(Call)
    wire.send(None)
    while body := wire.read():
        call = calls.decode(body)
        attempt = ProcessAttempt(call.info, wire, call.max_payload)
        attempt.answer(run_attempt(call, attempt))


def run_attempt(call: Call, attempt: ProcessAttempt) -> Answer:
    """Run one attempt. Any exception is its failure."""
    try:
        activity = _find(call.module, call.qualname, tuple(call.main.items()), call.info.name)
        assert activity.signature is not None
        assert activity.function is not None
        args, kwargs = activity.signature.decode(call.input)
        attempt.info = replace(call.info, details=read_details(call.details))
        context = contextvars.copy_context()
        context.run(enter_activity, attempt)
        value = context.run(activity.function, *args, **kwargs)
        return Answer(result=activity.signature.result.check(value, f"result of activity {call.info.name!r}"))
    except BaseException as error:  # noqa: BLE001 -- even SystemExit is a failure of the activity
        return Answer(failure=capture(in_user_code(error), limit=call.max_payload))


@functools.cache
def _find(module: str, qualname: str, main: tuple[tuple[str, str], ...], name: str) -> Activity[..., Any]:
    """Import the function: its definition, or the function itself if it was registered elsewhere."""
    try:
        if module == "__main__":
            _import_main(dict(main))
        found = attrgetter(qualname)(importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise DefinitionError(
            f"activity {name!r}: {module}.{qualname} cannot be imported by its process: {error}"
        ) from error
    return found if isinstance(found, Activity) else Activity(name, found, ActivityOptions())


def check_not_imported() -> None:
    """Refuse to open an engine while a process of an activity imports the main program for its function."""
    if importing_main.is_set():
        raise DefinitionError(
            "a process of an activity imports the main program, which must not open an engine then; "
            'put the code that runs it under `if __name__ == "__main__":`'
        )


def _import_main(main: dict[str, str]) -> None:
    from multiprocessing import spawn  # noqa: PLC0415 -- only needed here, and slow to import

    importing_main.set()
    try:
        spawn.prepare(main)
    finally:
        importing_main.clear()


def _exit_with_worker(lifeline: int) -> None:
    """End this process, and all it started, as soon as the other end of the *lifeline* is closed.

    By the kernel where it can: C code that holds the interpreter would keep a thread waiting.
    """
    import fcntl  # noqa: PLC0415 -- not available everywhere, and only needed here

    if hasattr(fcntl, "F_SETSIG"):
        with contextlib.suppress(OSError):
            fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
            fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC)

    def watch() -> None:
        os.read(lifeline, 1)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
