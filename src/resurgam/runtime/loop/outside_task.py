"""Runs workflow code beside the tasks of the worker's own loop.

From Python 3.14 on the running task is part of the thread's state, so a workflow's task cannot be stepped while a task
of the worker's own loop is: there it is called from a plain callback, which belongs to no task. Before, which task runs
is kept for each loop by itself, and the two turns of the loop that a callback costs are saved.
"""

import asyncio
import sys
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


if sys.version_info >= (3, 14):

    async def run_outside_task(function: Callable[[], T]) -> T:
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

else:

    async def run_outside_task(function: Callable[[], T]) -> T:
        """Return what *function* returns."""
        return function()
