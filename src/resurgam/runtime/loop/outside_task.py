"""Run workflow code outside the tasks of the worker's event loop.

From Python 3.14 on, the running task is thread state, so that a workflow's task cannot run inside a task of the
worker's loop: it is called from a plain callback, which belongs to no task. Before 3.14 each loop keeps its own running
task, and the two loop iterations that a callback costs are saved.
"""

import asyncio
import sys
from collections.abc import Callable
from typing import Final, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

TICKS_OUTSIDE_TASKS: Final = sys.version_info >= (3, 14)
"""Whether a tick must not run inside a task."""


def call_outside_task(function: Callable[[*Ts], None], *args: *Ts) -> None:
    """Call *function*: at once, or from a plain callback of the loop where a tick must not run inside a task."""
    if TICKS_OUTSIDE_TASKS:
        asyncio.get_running_loop().call_soon(function, *args)
    else:
        function(*args)


if sys.version_info >= (3, 14):

    async def run_outside_task(function: Callable[[], T]) -> T:
        """Call *function* from a plain callback of the loop and return its result."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def call() -> None:
            if done.cancelled():
                return
            try:
                result = function()
            except BaseException as error:  # noqa: BLE001 -- raised to the awaiting caller
                done.set_exception(RuntimeError(repr(error)) if isinstance(error, StopIteration) else error)
            else:
                done.set_result(result)

        loop.call_soon(call)
        return await done

else:

    async def run_outside_task(function: Callable[[], T]) -> T:
        """Call *function* and return its result."""
        return function()
