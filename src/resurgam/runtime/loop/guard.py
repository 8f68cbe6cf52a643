"""Refuse threads, subprocesses and sockets in workflow code, by Python's audit events.

The workflow's event loop refuses its own methods. This module covers calls that bypass it: ``threading.Thread``,
``subprocess.run``, ``socket.socket``. The hook does nothing unless a tick is running in the same thread.
"""

import contextlib
import sys
import threading
from collections.abc import Iterator

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


class _TickState(threading.local):
    """Whether this thread is running workflow code."""

    now = False


ticks: _TickState | dev_mode.WatchedTicks = dev_mode.enable() if dev_mode.ON else _TickState()
"""Set by the loop around each tick, without a context manager: this is the hottest path."""


@contextlib.contextmanager
def guarded(*, on: bool = True) -> Iterator[None]:
    """Refuse calls that cannot be replayed; with ``on=False`` allow them again, as for logging handlers."""
    before = ticks.now
    ticks.now = on
    try:
        yield
    finally:
        ticks.now = before


def _refuse(event: str, args: tuple[object, ...]) -> None:
    if ticks.now and event in _EVENTS:
        raise NotDeterministic(f"{event} in workflow code: {_INSTEAD}")


sys.addaudithook(_refuse)

if sys.version_info < (3, 12):
    # Before 3.12 starting a thread is not audited, so the one method that all threads pass is wrapped instead.
    _start_thread = threading.Thread.start

    def _start(self: threading.Thread) -> None:
        _refuse("_thread.start_new_thread", ())
        _start_thread(self)

    threading.Thread.start = _start  # type: ignore[method-assign]
