"""Runs a function from a plain callback of the running loop, not from inside a task.

From Python 3.14 on the running task is part of the thread's state, so a workflow's task cannot be stepped while a task
of the worker's own loop is; a callback belongs to no task.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def from_callback(function: Callable[[], T]) -> T:
    """Return what *function* returns when it is called by the loop itself."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def call() -> None:
        if done.cancelled():
            return
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 -- handed on to whoever awaits it
            done.set_exception(RuntimeError(repr(error)) if isinstance(error, StopIteration) else error)
        else:
            done.set_result(result)

    loop.call_soon(call)
    return await done
