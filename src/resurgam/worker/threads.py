"""Runs plain functions in threads of their own.

Not in a pool: an attempt that ran out of time goes on in its thread, which nobody can stop. In a pool such threads
would stand in the way of healthy work, and at exit Python would wait for them.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

Ended: TypeAlias = tuple[Any, BaseException | None]
"""What a call gave, or what it raised. Not a future's own exception: CancelledError and StopIteration would not do."""


def in_thread(function: Callable[[], object], name: str) -> asyncio.Future[Ended]:
    """Call *function* in a thread and return the future of how it ended. A loop that is gone by then hears nothing."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Ended] = loop.create_future()

    def settle(ended: Ended) -> None:
        if not future.done():
            future.set_result(ended)

    def run() -> None:
        try:
            ended: Ended = function(), None
        except BaseException as error:  # noqa: BLE001 -- whatever it raises is handed over
            ended = None, error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, ended)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
