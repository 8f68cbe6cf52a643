"""Run the operations of held instances: functions that a workflow runs beside itself (`ctx.run`)."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from resurgam.core import event as events
from resurgam.core.brain import LiveInstance
from resurgam.core.clock import Clock
from resurgam.core.operation import Operation
from resurgam.core.outcome import Entry
from resurgam.runtime.loop.interrupts import reraise_ctrl_c
from resurgam.worker.held import HeldInstance
from resurgam.worker.tasks import Tasks


class Operations:
    """Starts operations, and puts their answers into the inbox of their instance."""

    def __init__(self, clock: Clock, tasks: Tasks, is_cancelled: Callable[[], bool]) -> None:
        self._clock = clock
        self._tasks = tasks
        # Whether a program cancels every task of its loop.
        self._is_cancelled = is_cancelled

    def update(self, held: HeldInstance, live: LiveInstance, on_end: Callable[[object], None]) -> None:
        """Start the operations whose commands are committed now, and cancel those that are no longer wanted.

        *on_end* is called when one has ended that does not return at once.
        """
        for ref in [ref for ref in held.operations if not live.is_open(ref)]:
            held.operations.pop(ref).cancel()
        for operation in live.take_operations():
            started = self._start(operation)
            if isinstance(started, events.Event):
                held.inbox.append(Entry(None, started))
                continue
            running = self._tasks.spawn(self._finish(held, operation, started), f"operation {operation.name}")
            held.operations[operation.ref] = running
            running.add_done_callback(on_end)
            if inspect.iscoroutine(started):
                # Cancelled before its first step, it would warn that it was never awaited.
                running.add_done_callback(partial(_close_coroutine, started))

    def collect(self, held: HeldInstance) -> None:
        """Put the answers of operations that have ended into the inbox."""
        for ref, running in list(held.operations.items()):
            if running.done():
                del held.operations[ref]
                held.inbox.append(Entry(None, running.result()))

    def _start(self, operation: Operation) -> events.Event | Awaitable[object]:
        """Call the function of an operation; return its answer, or what remains to be awaited."""
        try:
            value = operation.function(*operation.args)
        except BaseException as error:  # noqa: BLE001 -- any exception is its answer, even SystemExit
            reraise_ctrl_c(error)
            return operation.failed(error, self._clock.now())
        return value if inspect.isawaitable(value) else operation.completed(value, self._clock.now())

    async def _finish(self, held: HeldInstance, operation: Operation, remaining: Awaitable[object]) -> events.Event:
        this = asyncio.current_task()
        assert this is not None
        try:
            value = await remaining
        except BaseException as error:
            if this.cancelling() and (self._is_cancelled() or held.operations.get(operation.ref) is not this):
                raise  # cancelled by the workflow, with its instance, or with the whole program; else from within
            reraise_ctrl_c(error)
            return operation.failed(error, self._clock.now())
        return operation.completed(value, self._clock.now())


def _close_coroutine(coroutine: Coroutine[Any, Any, object], _: object) -> None:
    coroutine.close()
