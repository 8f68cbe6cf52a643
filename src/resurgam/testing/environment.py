"""An engine in virtual time: days pass in milliseconds, activities are mocked, nothing sleeps."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, TypeVarTuple, Unpack, overload

from resurgam.client.client import FlowOptions
from resurgam.client.handle import Handle
from resurgam.core.retry import Duration, milliseconds
from resurgam.engine import Engine
from resurgam.runtime.context.context import Context
from resurgam.runtime.definitions.definition import STEP_MARK, Activity, Workflow, WorkflowRef
from resurgam.runtime.registry import Registry, default_registry
from resurgam.store.protocol import Store
from resurgam.testing.clock import ManualClock
from resurgam.testing.order import Order

if TYPE_CHECKING:
    from resurgam.flows.steps import Goal

R = TypeVar("R")
Ts = TypeVarTuple("Ts")
_QUIET_ITERATIONS: Final = 10
"""Iterations of the event loop without work after which the engine counts as idle: a call takes some iterations to reach
the store, and its effects some more to be claimed."""

_LOOK: Final = 0.001
"""Real seconds between two looks at an activity that waits for something real."""


class _Unset:
    """The default of an argument that was not passed."""


UNSET: Final = _Unset()


class Environment:
    """An engine for one test, with its own virtual time.

    Virtual time moves only in `advance` and `finish`. An activity that waits for something real (a socket, a thread)
    gets *patience* real seconds without progress before virtual time moves past it, and more on a busy machine.

    With *seed*, the activities that could run at the same time run one after the other, each when all others wait, in an
    order that the seed decides. A test that holds for some seeds does not depend on which result arrives first.
    """

    def __init__(
        self,
        *,
        store: str | Store = "memory://",
        registry: Registry | None = None,
        clock: ManualClock | None = None,
        patience: float = 0.2,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        self.clock = clock or ManualClock()
        self._registry = (default_registry if registry is None else registry).copy()
        # Looks, not seconds: where threads wait long for a processor, so does the loop between two looks.
        self._looks = patience / _LOOK
        self._stalled_at = -1
        self._order = None if seed is None else Order(seed)
        for activity in list(self._registry.activities) if seed is not None else ():
            self._replace(activity, activity.function)

        if isinstance(store, str):
            # Long leases, so that time need not stop at every renewal while an activity waits.
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
        activity: Activity[..., Any] | Callable[..., Any] | str,
        *,
        returns: object = UNSET,
        raises: BaseException | None = None,
        calls: Callable[..., object] | None = None,
    ) -> None:
        """Mock an activity, or a function with ``@step``: it *returns* a value, *raises* an exception, or *calls* a function."""
        if (returns is not UNSET) + (raises is not None) + (calls is not None) != 1:
            raise ValueError("mock() takes exactly one of returns=, raises= and calls=")
        if not isinstance(activity, Activity | str):
            if not hasattr(activity, STEP_MARK):
                raise TypeError(f"mock() takes an activity, its name, or a function with @step, got {activity!r}")
            activity = str(getattr(activity, STEP_MARK).id)
        self._replace(activity, calls or _constant(returns, raises))

    def _replace(self, activity: Activity[..., Any] | str, function: Callable[..., object] | None) -> None:
        if function is not None:
            self._registry.replace(activity, function if self._order is None else self._order.hold(function))

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
        """Start a workflow and let it run as far as it can without time passing."""
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
        """Signal the open execution of *id*, or start one with the signal, and let it run as `start` does."""
        handle: Handle[Any] = await self.engine.signal_with_start(workflow, *args, **options)
        await self.settle()
        return handle

    async def start_flow(
        self, goals: "Sequence[Goal]", init: Mapping[str, object] | None = None, **options: Unpack[FlowOptions]
    ) -> Handle[dict[str, Any]]:
        """Start a flow and let it run as far as it can without time passing."""
        handle = await self.engine.start_flow(goals, init, **options)
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
        """Move virtual time forward, stopping at every moment at which something is due."""
        target = self.clock.now() + milliseconds(duration)
        await self.settle()
        while (due := self.clock.next_due()) is not None and due <= target:
            self.clock.move_to(due)
            await self.settle()
        self.clock.move_to(target)
        await self.settle()

    async def finish(self, waited_for: Awaitable[R], *, limit: Duration = 10 * 365 * 86400) -> R:
        """Move virtual time, by at most *limit*, until *waited_for* is done, such as ``handle.result()``; return its result."""
        waiting = asyncio.ensure_future(waited_for)
        end = self.clock.now() + milliseconds(limit)
        await self.settle()
        while not waiting.done() and (due := self.clock.next_due()) is not None and due <= end:
            self.clock.move_to(due)
            await self.settle()
        if not waiting.done():
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            raise TimeoutError("the awaited result has not come, and nothing is due that could produce it")
        return await waiting

    async def settle(self) -> None:
        """Wait until the engine has done everything that is possible without time passing."""
        await self._settle()
        while self._order is not None and self._order.release():
            await self._settle()

    async def _settle(self) -> None:
        quiet, progress, looks = 0, -1, 0
        while quiet < _QUIET_ITERATIONS:
            # First yield without waiting at all; only an activity that waits for something real needs real time.
            await asyncio.sleep(_LOOK if progress == self.engine.progress and self.engine.busy else 0)
            looks += 1
            stalled = self._stalled_at == self.engine.progress
            quiet = quiet + 1 if self.engine.resting or stalled or self._is_held(progress) else 0
            if progress != self.engine.progress:
                progress, looks = self.engine.progress, 0

            elif self.engine.busy and looks > self._looks:
                # Work without progress until now waits for virtual time; do not wait for it in real time again.
                self._stalled_at = progress

    def _is_held(self, progress: int) -> bool:
        """Whether all activities that run are held back, and nothing else happens."""
        waiting = 0 if self._order is None else self._order.waiting
        return 0 < waiting == self.engine.running and progress == self.engine.progress


def _constant(value: object, error: BaseException | None) -> Callable[..., object]:
    async def answer(*args: object, **kwargs: object) -> object:
        if error is not None:
            raise error
        return value

    return answer
