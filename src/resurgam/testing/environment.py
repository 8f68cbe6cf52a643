"""An engine in virtual time: days pass in milliseconds, activities are mocked, nothing sleeps."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Self, TypeVar, TypeVarTuple, overload

from resurgam.client.handle import Handle
from resurgam.core.retry import Duration, milliseconds
from resurgam.engine import Engine
from resurgam.runtime.context.context import Context
from resurgam.runtime.definitions.definition import Activity, Workflow, WorkflowRef
from resurgam.runtime.registry import Registry, default_registry
from resurgam.store.protocol import Store
from resurgam.testing.clock import ManualClock

R = TypeVar("R")
Ts = TypeVarTuple("Ts")
_QUIET_TURNS: Final = 10
"""Turns of the event loop without any work after which the engine counts as being at rest: a call takes some turns to
reach the store, and its news some more to be claimed."""


class _Unset:
    """Stands for a value that was not given."""


UNSET: Final = _Unset()


class Environment:
    """A world for one test, with its own engine and its own time.

    Virtual time moves only in `advance`. An activity that really waits for something outside (a socket, a thread) is
    given *patience* real seconds without progress before time moves on past it.
    """

    def __init__(
        self,
        *,
        store: str | Store = "memory://",
        registry: Registry | None = None,
        clock: ManualClock | None = None,
        patience: float = 0.2,
        **options: Any,
    ) -> None:
        self.clock = clock or ManualClock()
        self._registry = (default_registry if registry is None else registry).copy()
        self._patience = patience
        self._stalled_at = -1

        if isinstance(store, str):
            # Long leases, so that time need not stop at every renewal while an activity hangs.
            options.setdefault("lease", 86400)
        self.engine = Engine(store, registry=self._registry, clock=self.clock, **options)

    async def __aenter__(self) -> Self:
        await self.engine.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.engine.__aexit__(kind, error, traceback)

    def now(self) -> datetime:
        """Return the virtual time."""
        return datetime.fromtimestamp(self.clock.now() / 1000, UTC)

    def mock(
        self,
        activity: Activity[..., Any] | str,
        *,
        returns: object = UNSET,
        raises: BaseException | None = None,
        calls: Callable[..., object] | None = None,
    ) -> None:
        """Replace what an activity does: it *returns* a value, *raises* an exception, or *calls* a function."""
        if (returns is not UNSET) + (raises is not None) + (calls is not None) != 1:
            raise ValueError("say exactly one of returns=, raises= and calls=")
        self._registry.replace(activity, calls or _constant(returns, raises))

    @overload
    async def start(
        self, workflow: Callable[[Context, *Ts], Coroutine[Any, Any, R]], /, *args: *Ts, **options: Any
    ) -> Handle[R]: ...
    @overload
    async def start(self, workflow: WorkflowRef[R], /, *args: Any, **options: Any) -> Handle[R]: ...
    @overload
    async def start(self, workflow: str, /, *args: Any, **options: Any) -> Handle[Any]: ...
    async def start(  # type: ignore[misc]  # mypy does not see that *args: Any takes any *Ts
        self, workflow: Any, /, *args: Any, **options: Any
    ) -> Handle[Any]:
        """Begin a workflow and let it run as far as it comes without time passing."""
        handle: Handle[Any] = await self.engine.start(workflow, *args, **options)
        await self.settle()
        return handle

    @overload
    async def signal_with_start(
        self, workflow: Callable[[Context, *Ts], Coroutine[Any, Any, R]], /, *args: *Ts, **options: Any
    ) -> Handle[R]: ...
    @overload
    async def signal_with_start(self, workflow: WorkflowRef[R], /, *args: Any, **options: Any) -> Handle[R]: ...
    @overload
    async def signal_with_start(self, workflow: str, /, *args: Any, **options: Any) -> Handle[Any]: ...
    async def signal_with_start(  # type: ignore[misc]  # as above
        self, workflow: Any, /, *args: Any, **options: Any
    ) -> Handle[Any]:
        """Send a signal to the open execution of *id*, or begin one that finds it, and let it run as `start` does."""
        handle: Handle[Any] = await self.engine.signal_with_start(workflow, *args, **options)
        await self.settle()
        return handle

    @overload
    def handle(
        self,
        entity_id: str,
        run_id: str | None = None,
        *,
        execution_id: str | None = None,
        workflow: Workflow[..., R],
    ) -> Handle[R]: ...
    @overload
    def handle(
        self,
        entity_id: str,
        run_id: str | None = None,
        *,
        execution_id: str | None = None,
        workflow: str | None = None,
    ) -> Handle[Any]: ...
    def handle(
        self,
        entity_id: str,
        run_id: str | None = None,
        *,
        execution_id: str | None = None,
        workflow: Any = None,
    ) -> Handle[Any]:
        """Return a handle to a workflow by its id, such as that of a child, as `Engine.handle` does."""
        return self.engine.handle(entity_id, run_id, execution_id=execution_id, workflow=workflow)

    async def advance(self, duration: Duration) -> None:
        """Let virtual time pass, stopping at every moment at which something is due."""
        target = self.clock.now() + milliseconds(duration)
        await self.settle()
        while (due := self.clock.next_due()) is not None and due <= target:
            self.clock.move_to(due)
            await self.settle()
        self.clock.move_to(target)
        await self.settle()

    async def finish(self, waited_for: Awaitable[R], *, limit: Duration = 10 * 365 * 86400) -> R:
        """Let time pass until *waited_for*, such as ``handle.result()``, is there; at most *limit* of it."""
        waiting = asyncio.ensure_future(waited_for)
        end = self.clock.now() + milliseconds(limit)
        await self.settle()
        while not waiting.done() and (due := self.clock.next_due()) is not None and due <= end:
            self.clock.move_to(due)
            await self.settle()
        if not waiting.done():
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            raise TimeoutError("what was waited for has not come, and nothing is due that could bring it")
        return await waiting

    async def settle(self) -> None:
        """Wait until the engine has done all it can do without time passing."""
        loop = asyncio.get_running_loop()
        quiet, progress, since = 0, -1, loop.time()
        while quiet < _QUIET_TURNS:
            # Let others run first without waiting at all; only an activity that waits for the outside needs real time.
            await asyncio.sleep(0.001 if progress == self.engine.progress and self.engine.busy else 0)
            quiet = quiet + 1 if self.engine.resting or self._stalled_at == self.engine.progress else 0
            if progress != self.engine.progress:
                progress, since = self.engine.progress, loop.time()

            elif self.engine.busy and loop.time() - since > self._patience:
                # Whoever did not stir until now is waiting for virtual time; do not lose patience with it again.
                self._stalled_at = progress


def _constant(value: object, error: BaseException | None) -> Callable[..., object]:
    async def answer(*args: object, **kwargs: object) -> object:
        if error is not None:
            raise error
        return value

    return answer
