"""Refuses threads, subprocesses and sockets to workflow code, by Python's own audit events.

What the workflow's event loop offers is refused there. This is for what goes past it: ``threading.Thread``,
``subprocess.run``, ``socket.socket``. The hook is silent unless a tick is running in the same thread.
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
"""Set by the loop around each tick, without a context manager: it is the hottest path there is."""


@contextlib.contextmanager
def guarded(*, on: bool = True) -> Iterator[None]:
    """Refuse (or with ``on=False`` allow again, as for logging handlers) what cannot be replayed."""
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
    # Before 3.12 starting a thread is not audited, so the one door that all threads pass is watched instead.
    _start_thread = threading.Thread.start

    def _start(self: threading.Thread) -> None:
        _refuse("_thread.start_new_thread", ())
        _start_thread(self)

    threading.Thread.start = _start  # type: ignore[method-assign]
