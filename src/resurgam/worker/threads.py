"""Run plain functions in threads of their own.

Not in a pool: an abandoned attempt is interrupted, but one that waits in C code, or swallows the interruption, goes on
in its thread and cannot be stopped. In a pool such threads would block other work, and Python would wait for them at
exit.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

from resurgam.worker.interrupt import absorb_pending, raise_in

Ended: TypeAlias = tuple[Any, BaseException | None]
"""The value that a call returned, and the exception that it raised: a future cannot hold every exception."""

_NOT_CALLED: Ended = None, None


class ThreadCall:
    """A call in a thread. *ended* is the future of its result; it is not settled if the loop is closed by then."""

    def __init__(self, function: Callable[[], object], name: str) -> None:
        self._function = function
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[Ended] = self._loop.create_future()
        # Guards the two below: an interruption must hit the function, or nothing.
        self._lock = threading.Lock()
        self._inside = False
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Drop the result, and raise `asyncio.CancelledError` in the function, once."""
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
        ended = _NOT_CALLED
        try:
            if self._enter():
                ended = _called(self._function)
            self._leave()
        except asyncio.CancelledError:
            # Raised after the function ended, or while leaving; it is raised only once.
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
            absorb_pending(asyncio.CancelledError)

    def _settle(self, ended: Ended) -> None:
        if not self.ended.done():
            self.ended.set_result(ended)


def _called(function: Callable[[], object]) -> Ended:
    try:
        return function(), None
    except BaseException as error:  # noqa: BLE001 -- any exception is passed on
        return None, error
