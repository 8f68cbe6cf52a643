"""Futures whose hash is the same in every process.

`asyncio.wait` and `asyncio.TaskGroup` keep futures in sets; with the usual hash, an address, the order in which they
are looked at would differ from run to run. Here the hash comes from the place of the future in the history.
"""

import asyncio
import sys
from collections.abc import Coroutine
from contextvars import Context
from types import FrameType
from typing import Any, Generic, TypeVar

from resurgam.core import event as events
from resurgam.core.codec import Codec
from resurgam.core.errors import NotDeterministic
from resurgam.runtime.loop import dev_mode
from resurgam.runtime.loop.calls import DurableCalls
from resurgam.runtime.loop.scope import Scope, current, stable_hash

T = TypeVar("T")


class BareFuture(asyncio.Future[T]):
    """A future that asyncio or the user makes inside a workflow; it has no place in the history."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._hash: int | None = None

    def __hash__(self) -> int:
        # Counted when it is first needed: how many futures asyncio makes for itself differs between Pythons.
        if self._hash is None:
            self._hash = _counted_hash(self)
        return self._hash


class Durable(asyncio.Future[T], Generic[T]):
    """What a durable call returns: await it, pass it to `asyncio.gather`, or cancel it.

    Its place was taken when the call was made; when and whether it is awaited makes no difference to the history.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, command: events.Command, calls: DurableCalls, codec: Codec[Any]
    ) -> None:
        self.codec = codec
        self._command = command
        self._calls = calls
        self._hash: int | None = None
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = stable_hash(_seed_of(self.get_loop()), str(self._command.location))
        return self._hash

    @property
    def command(self) -> events.Command:
        """The command event that this future waits for the answer to."""
        return self._command

    def get_name(self) -> str:
        """Return the command id; asyncio asks tasks for their name, and this may stand where a task is wanted."""
        return self._command.command

    def close(self) -> None:
        """Accept being closed, as a coroutine would be by a task group that takes no more tasks."""

    def set_name(self, name: object) -> None:
        """Accept a name as a task would; the command id stays what it is."""

    def cancel(self, msg: object = None) -> bool:
        """Call the command off: it is recorded as cancelled, and awaiting this raises `asyncio.CancelledError`."""
        if not super().cancel(msg):
            return False
        self._calls.cancel(self._command)
        return True


class Batch(Durable[T]):
    """What ``ctx.listen_many`` returns: a list of signals, empty if none came in time."""


class WorkflowTask(asyncio.Task[T]):
    """A strand of its own within a workflow."""

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, T],
        *,
        loop: asyncio.AbstractEventLoop,
        context: Context,
        scope: Scope,
        place: str,
    ) -> None:
        self.scope = scope
        self._hash = stable_hash(scope.seed, place)
        # Named by its place: asyncio's own names count the tasks of the process.
        super().__init__(coroutine, loop=loop, context=context, name=f"Task {place}")

    def __hash__(self) -> int:
        return self._hash

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the workflow's loop; `asyncio.all_tasks`, which asks every task for it, is refused to its code."""
        loop = super().get_loop()
        if asyncio._get_running_loop() is loop and _asked_by_all_tasks(sys._getframe(1)):
            raise NotDeterministic(
                "asyncio.all_tasks() gives tasks in an order that differs from run to run; keep a list of your own"
            )
        return loop


def _seed_of(loop: asyncio.AbstractEventLoop) -> str:
    seed: str = loop.seed  # type: ignore[attr-defined]  # a durable future is made by a workflow's loop alone
    return seed


def _asked_by_all_tasks(frame: FrameType | None) -> bool:
    for _ in range(3):  # past asyncio's own look-up, and before 3.12 the frame of a set comprehension
        if frame is None:
            return False
        if frame.f_code is asyncio.all_tasks.__code__:
            return True
        frame = frame.f_back
    return False


def _counted_hash(future: "asyncio.Future[Any]") -> int:
    scope = current.get(None)
    return object.__hash__(future) if scope is None else scope.future_hash()


def _gathering_hash(self: "asyncio.Future[Any]") -> int:
    """Hash the future that `asyncio.gather` makes: by place on a workflow's loop, by identity on any other."""
    found: int | None = getattr(self, "_resurgam_hash", None)
    if found is None:
        found = _counted_hash(self) if hasattr(self.get_loop(), "seed") else object.__hash__(self)
        self._resurgam_hash = found  # type: ignore[attr-defined]  # its class is asyncio's, and takes attributes
    return found


# The one patch of asyncio: gather names its future class itself, so a loop has no say in which class it is.
asyncio.tasks._GatheringFuture.__hash__ = _gathering_hash  # type: ignore[attr-defined]

if dev_mode.ON:
    dev_mode.warn_if_unawaited(Durable)
