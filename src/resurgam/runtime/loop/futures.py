"""Futures whose hash is the same in every process.

`asyncio.wait` and `asyncio.TaskGroup` keep futures in sets; with the usual hash, an address, their order would differ
from run to run. Here the hash is derived from the future's location in the history.
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
_init_future = asyncio.Future.__init__


class BareFuture(asyncio.Future[T]):
    """A future created by asyncio or the user inside a workflow; it has no location in the history."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._hash: int | None = None

    def __hash__(self) -> int:
        # Counted on first use: the number of futures that asyncio creates itself differs between Python versions.
        if self._hash is None:
            self._hash = _counted_hash(self)
        return self._hash


class Durable(asyncio.Future[T], Generic[T]):
    """The result of a durable call: await it, pass it to `asyncio.gather`, or cancel it.

    Its location was assigned when the call was made; when and whether it is awaited does not affect the history.
    """

    __slots__ = ("_calls", "_command", "_hash", "codec")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, command: events.Command, calls: DurableCalls, codec: Codec[Any]
    ) -> None:
        self.codec = codec
        self._command = command
        self._calls = calls
        self._hash: int | None = None
        _init_future(self, loop=loop)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = stable_hash(_seed_of(self.get_loop()), str(self._command.location))
        return self._hash

    @property
    def command(self) -> events.Command:
        """The command whose answer settles this future."""
        return self._command

    def get_name(self) -> str:
        """Return the command id, as a task returns its name: a durable future may be used in place of a task."""
        return self._command.command

    def close(self) -> None:
        """Do nothing; a task group that accepts no more tasks closes the coroutine it was given."""

    def set_name(self, name: object) -> None:
        """Do nothing; the name is the command id."""

    def cancel(self, msg: object = None) -> bool:
        """Cancel the command: record the cancellation, and raise `asyncio.CancelledError` where it is awaited."""
        if not super().cancel(msg):
            return False
        self._calls.cancel(self._command)
        return True


class Batch(Durable[T]):
    """The result of ``ctx.listen_many``: a list of signals, empty if none came in time."""


class WorkflowTask(asyncio.Task[T]):
    """A task of a workflow, with a scope of its own."""

    __slots__ = ("_hash", "scope")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, T],
        *,
        loop: asyncio.AbstractEventLoop,
        context: Context,
        scope: Scope,
        label: str,
    ) -> None:
        self.scope = scope
        self._hash = stable_hash(scope.seed, label)
        # Named by its location: asyncio's own names count the tasks of the process.
        super().__init__(coroutine, loop=loop, context=context, name=f"Task {label}")

    def __hash__(self) -> int:
        return self._hash

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the workflow's loop; refuse workflow code that calls `asyncio.all_tasks`, which calls this."""
        loop = super().get_loop()
        if asyncio._get_running_loop() is loop and _asked_by_all_tasks(sys._getframe(1)):
            raise NotDeterministic(
                "asyncio.all_tasks() returns tasks in an order that differs from run to run; keep a list of your own"
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
    """Hash the future that `asyncio.gather` creates: by location on a workflow's loop, by identity on any other."""
    found: int | None = getattr(self, "_resurgam_hash", None)
    if found is None:
        found = _counted_hash(self) if hasattr(self.get_loop(), "seed") else object.__hash__(self)
        self._resurgam_hash = found  # type: ignore[attr-defined]  # asyncio's class allows attributes
    return found


# A patch of asyncio (`event_loop` has the other one): gather hard-codes its future class, so that a loop cannot choose it.
asyncio.tasks._GatheringFuture.__hash__ = _gathering_hash  # type: ignore[attr-defined]

if dev_mode.ON:
    dev_mode.warn_if_unawaited(Durable)
