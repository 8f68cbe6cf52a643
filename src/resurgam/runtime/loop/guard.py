"""Refuse threads, subprocesses and sockets in workflow code, by Python's audit events.

The workflow's event loop refuses its own methods. This module covers calls that bypass it: ``threading.Thread``,
``subprocess.run``, ``socket.socket``. The hook does nothing unless a tick is running in the same thread.
"""

import contextlib
import sys
import threading
from collections.abc import Iterator
from threading import get_ident

from resurgam.core.errors import NotDeterministic
from resurgam.runtime.loop import dev_mode

_INSTEAD = "it cannot be replayed; put it into an activity and call ctx.activity(...), or ctx.run(...) if it is short"
_EVENTS = frozenset(
    {
        *("_thread.start_new_thread", "_thread.start_joinable_thread"),
        *("subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn"),
        *("socket.__new__", "socket.connect", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname"),
    }
)


ticking: set[int] = dev_mode.enable() if dev_mode.ON else set()
"""The threads that are running workflow code, by their ids.

The loop adds and discards its own around each tick, without a context manager: this is the hottest path. A
`threading.local` would say the same, but reading and setting its attributes costs as much as a durable call.
"""


@contextlib.contextmanager
def guarded(*, on: bool = True) -> Iterator[None]:
    """Refuse calls that cannot be replayed; with ``on=False`` allow them again, as for logging handlers."""
    thread = get_ident()
    before = thread in ticking
    _set(thread, on=on)
    try:
        yield
    finally:
        _set(thread, on=before)


def _set(thread: int, *, on: bool) -> None:
    if on:
        ticking.add(thread)
    else:
        ticking.discard(thread)


def _refuse(event: str, args: tuple[object, ...]) -> None:
    if ticking and get_ident() in ticking and event in _EVENTS:
        raise NotDeterministic(f"{event} in workflow code: {_INSTEAD}")


sys.addaudithook(_refuse)

if sys.version_info < (3, 12):
    # Before 3.12 starting a thread is not audited, so the one method that all threads pass is wrapped instead.
    _start_thread = threading.Thread.start

    def _start(self: threading.Thread) -> None:
        _refuse("_thread.start_new_thread", ())
        _start_thread(self)

    threading.Thread.start = _start  # type: ignore[method-assign]
