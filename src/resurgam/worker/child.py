"""The other side of `resurgam.worker.processes`: a process that runs attempts of activities, one after the other.

A call comes with the name of a function, which is imported here, and the recorded bytes of its arguments; what goes
back is the bytes of the result, or what is recorded of an exception. No object of the user's crosses in between.
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
from typing import Any, BinaryIO, Final

import msgspec
from msgspec import Raw

from resurgam.core.errors import DefinitionError
from resurgam.core.event import NULL, Failure
from resurgam.core.failure import capture, in_user_code
from resurgam.runtime.definition import Activity, ActivityOptions
from resurgam.runtime.info import ActivityInfo, enter_activity

HEAD: Final = 8
"""Bytes before each message that say how long it is."""

_STAND_IN = "__mp_main__"
"""The name under which multiprocessing imports the main script, so that its ``if __name__ == "__main__"`` is not run."""


importing_main = threading.Event()
"""Set while the main script is imported: it must not start processes then, which would import it in their turn."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt to be made. *main* says how the main script is imported, where the function stands in it."""

    module: str
    qualname: str
    main: dict[str, str]
    info: ActivityInfo
    input: Raw


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it: a result, if there is no failure."""

    result: Raw = NULL
    failure: Failure | None = None


def message(content: Call | Answer | None) -> bytes:
    """Return a message as it goes over the wire; None says that this process is ready."""
    body = msgspec.json.encode(content)
    return len(body).to_bytes(HEAD, "big") + body


def main(channel: int, lifeline: int) -> None:
    """Make attempts until the worker hangs up."""
    for file in (channel, lifeline):
        os.set_inheritable(file, False)  # noqa: FBT003 -- it takes no keywords
    _die_with_the_worker(lifeline)
    wire = socket.socket(fileno=channel)
    # A fork that outlives this process must not keep the worker from seeing that it has ended.
    os.register_at_fork(after_in_child=wire.close)
    calls = msgspec.json.Decoder(Call)
    with wire, wire.makefile("rb") as incoming:
        wire.sendall(message(None))
        while body := _read(incoming):
            answer = message(perform(calls.decode(body)))
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()  # this process may be killed before it would do so itself
            wire.sendall(answer)


def perform(call: Call) -> Answer:
    """Make one attempt. Whatever it raises is its failure."""
    try:
        activity = _find(call.module, call.qualname, tuple(call.main.items()), call.info.name)
        assert activity.signature is not None
        assert activity.function is not None
        args, kwargs = activity.signature.decode(call.input)
        context = contextvars.copy_context()
        context.run(enter_activity, call.info)
        value = context.run(activity.function, *args, **kwargs)
        return Answer(result=activity.signature.result.check(value, f"result of activity {call.info.name!r}"))
    except BaseException as error:  # noqa: BLE001 -- even sys.exit() is only a failure of the activity
        return Answer(failure=_as_in_main(capture(in_user_code(error))))


def _read(incoming: BinaryIO) -> bytes:
    return incoming.read(int.from_bytes(incoming.read(HEAD), "big"))


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


def _as_in_main(failure: Failure) -> Failure:
    """Name exceptions of the main script as the worker knows them."""
    return msgspec.structs.replace(
        failure,
        type=_in_main(failure.type),
        bases=tuple(_in_main(base) for base in failure.bases),
        cause=None if failure.cause is None else _as_in_main(failure.cause),
        members=tuple(_as_in_main(member) for member in failure.members),
    )


def _in_main(name: str) -> str:
    return f"__main__{name.removeprefix(_STAND_IN)}" if name.startswith(f"{_STAND_IN}.") else name


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
