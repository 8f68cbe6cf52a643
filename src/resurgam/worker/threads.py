"""Runs plain functions in threads of their own.

Not in a pool: an attempt that nobody waits for any more is interrupted, but one that waits in C code, or swallows the
interruption, goes on in its thread, which nobody can stop. In a pool such threads would stand in the way of healthy
work, and at exit Python would wait for them.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

from resurgam.worker.interrupt import raise_in, take_what_is_to_come

Ended: TypeAlias = tuple[Any, BaseException | None]
"""What a call gave, or what it raised. Not a future's own exception: CancelledError and StopIteration would not do."""

_UNHEARD: Ended = None, None


class ThreadCall:
    """A call in a thread. *ended* is the future of how it ended; a loop that is gone by then hears nothing."""

    def __init__(self, function: Callable[[], object], name: str) -> None:
        self._function = function
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[Ended] = self._loop.create_future()
        # Guards the two below: an interruption must hit the function, or nobody.
        self._lock = threading.Lock()
        self._inside = False
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Hear no longer how it ends, and raise `asyncio.CancelledError` in it, once."""
        self.ended.cancel()
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            if self._inside:
                assert self._thread.ident is not None
                raise_in(self._thread.ident, asyncio.CancelledError)

    # Called by the thread.

    def _run(self) -> None:
        ended = _UNHEARD
        try:
            if self._enter():
                ended = _called(self._function)
            self._leave()
        except asyncio.CancelledError:
            # It came when the function had ended, or in the middle of leaving; it comes but once.
            self._leave()
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._settle, ended)

    def _enter(self) -> bool:
        with self._lock:
            self._inside = not self._stopped
            return self._inside

    def _leave(self) -> None:
        with self._lock:
            self._inside = False
            stopped = self._stopped
        if stopped:
            take_what_is_to_come(asyncio.CancelledError)

    def _settle(self, ended: Ended) -> None:
        if not self.ended.done():
            self.ended.set_result(ended)


def _called(function: Callable[[], object]) -> Ended:
    try:
        return function(), None
    except BaseException as error:  # noqa: BLE001 -- whatever it raises is handed over
        return None, error
