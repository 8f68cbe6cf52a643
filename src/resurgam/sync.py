"""The engine for code without an event loop: scripts, notebooks, Django.

The `Engine` runs on an event loop in a thread of its own. Each verb here runs the coroutine of the same verb of
`Engine` on that loop and waits for it, so no verb is written twice, and any number of threads may wait at the same
time.
"""

import asyncio
import functools
import inspect
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent import futures
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Self,
    TypeVar,
    TypeVarTuple,
    Unpack,
    overload,
)

from resurgam.client.client import FlowOptions, SignalOptions, StartOptions, UpdateOptions
from resurgam.client.handle import Handle
from resurgam.client.subscription import Subscription
from resurgam.client.update import Accepted, Completed, SendOptions, Stage, UpdateHandle
from resurgam.core.errors import StoreError
from resurgam.core.location import Location
from resurgam.core.retry import Duration
from resurgam.engine import Engine
from resurgam.runtime.context.context import Context
from resurgam.runtime.definitions.definition import Workflow, WorkflowRef

if TYPE_CHECKING:
    from typing_extensions import TypeForm as Form

    from resurgam.flows.steps import Goal

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
D = TypeVar("D")
Ts = TypeVarTuple("Ts")


class _LoopThread:
    """A thread with an event loop on which an engine is open until `close`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[Any] | None = None
        self._closing = asyncio.Event()
        self._opened: futures.Future[None] = futures.Future()
        self._ended: futures.Future[None] = futures.Future()
        # A daemon thread, so that a program that does not close its engine can still exit.
        threading.Thread(target=self._run, name="resurgam engine", daemon=True).start()
        try:
            self._opened.result()
        except BaseException:
            self.close()
            raise

    def call(self, verb: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run the coroutine of *verb* on the loop and wait for it; if the wait is interrupted, cancel the coroutine."""
        self._check_caller()
        with self._lock:
            if self._loop is None:
                raise _not_open()
            future = asyncio.run_coroutine_threadsafe(verb(), self._loop)
        try:
            return future.result()
        except futures.CancelledError:
            raise StoreError("the engine was closed while this call was waiting") from None
        except BaseException:
            future.cancel()
            raise

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call *callback* on the loop. Takes no lock, because a signal handler may interrupt the thread that holds it."""
        loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(callback)

    def close(self) -> None:
        """Drain, close the engine and end the loop. If interrupted, cancel the drain and return without waiting."""
        if os.getpid() != self._pid:
            return  # a forked child leaves the `with` of its parent; the engine is not its own
        with self._lock:
            if self._loop is None:
                self._closing.set()  # the loop does not run yet, or no longer
        self.call_soon(self._closing.set)
        try:
            self._ended.result()
        finally:
            if not self._ended.done() and self._main is not None:
                self.call_soon(self._main.cancel)

    def _check_caller(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"this SyncEngine was opened by process {self._pid} and cannot be used in a fork of it; "
                "open one in each process, after the fork"
            )
        _check_no_running_loop()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 -- raised by the call that opens or closes the engine
            (self._ended if self._opened.done() else self._opened).set_exception(error)
        if not self._ended.done():
            self._ended.set_result(None)

    async def _serve(self) -> None:
        self._main = asyncio.current_task()
        with self._lock:
            self._loop = asyncio.get_running_loop()
        try:
            async with self._engine:
                self._opened.set_result(None)
                await self._closing.wait()
        finally:
            with self._lock:
                self._loop = None
            # Accepted calls become tasks here, so that asyncio.run() cancels them.
            await asyncio.sleep(0)


def _sync_handle_verb(
    verb: Callable[Concatenate[Handle[R], P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["SyncHandle[R]", P], T]:
    """Return a blocking version of a verb of `Handle`."""

    @functools.wraps(verb)
    def call(self: "SyncHandle[R]", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.call(lambda: verb(self._handle, *args, **kwargs))

    return call


def _sync_engine_verb(
    verb: Callable[Concatenate[Engine, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["SyncEngine", P], T]:
    """Return a blocking version of a verb of `Engine`."""

    @functools.wraps(verb)
    def call(self: "SyncEngine", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._open_thread().call(lambda: verb(self._engine, *args, **kwargs))

    return call


def _parameters_of(
    _: Callable[Concatenate[Engine, P], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate["SyncEngine", P], None]]:
    """Give ``SyncEngine(...)`` the parameter types of ``Engine(...)``."""
    return lambda function: function


class SyncHandle(Generic[R]):
    """A blocking `Handle`: every verb returns when it is done."""

    def __init__(self, thread: _LoopThread, handle: Handle[R]) -> None:
        self._thread = thread
        self._handle = handle

    def __repr__(self) -> str:
        return repr(self._handle)

    @property
    def entity_id(self) -> str:
        """The id of the workflow."""
        return self._handle.entity_id

    @property
    def run_id(self) -> str:
        """The run of this handle, or the last one it has seen."""
        return self._handle.run_id

    @property
    def execution_id(self) -> str:
        """The execution of this handle, or the last one it has seen."""
        return self._handle.execution_id

    result = _sync_handle_verb(Handle[R].result)
    signal = _sync_handle_verb(Handle[R].signal)
    resolve = _sync_handle_verb(Handle[R].resolve)
    reject = _sync_handle_verb(Handle[R].reject)
    cancel = _sync_handle_verb(Handle[R].cancel)
    terminate = _sync_handle_verb(Handle[R].terminate)
    pause = _sync_handle_verb(Handle[R].pause)
    resume = _sync_handle_verb(Handle[R].resume)
    begin = _sync_handle_verb(Handle[R].begin)
    retry = _sync_handle_verb(Handle[R].retry)
    history = _sync_handle_verb(Handle[R].history)
    describe = _sync_handle_verb(Handle[R].describe)
    tree = _sync_handle_verb(Handle[R].tree)

    # `_sync_handle_verb` would keep only the first overload of a verb.

    @overload
    def query(self, name: str, *args: object, type: "Form[T]", timeout: Duration = 30) -> T: ...
    @overload
    def query(self, name: str, *args: object, type: None = None, timeout: Duration = 30) -> Any: ...
    def query(self, name: str, *args: object, type: Any = None, timeout: Duration = 30) -> Any:
        """Return the result of the handler of query *name*, as `Handle.query` does."""
        return self._thread.call(lambda: self._handle.query(name, *args, type=type, timeout=timeout))

    @overload
    def update(
        self, name: str, *args: object, type: "Form[T]", wait: Accepted, **options: Unpack[SendOptions]
    ) -> "SyncUpdateHandle[T]": ...
    @overload
    def update(
        self, name: str, *args: object, type: None = None, wait: Accepted, **options: Unpack[SendOptions]
    ) -> "SyncUpdateHandle[Any]": ...
    @overload
    def update(
        self, name: str, *args: object, type: "Form[T]", wait: Completed = "completed", **options: Unpack[SendOptions]
    ) -> T: ...
    @overload
    def update(
        self, name: str, *args: object, type: None = None, wait: Completed = "completed", **options: Unpack[SendOptions]
    ) -> Any: ...
    def update(
        self,
        name: str,
        *args: object,
        type: Any = None,
        wait: Stage = "completed",
        id: str | None = None,
        timeout: Duration | None = None,
    ) -> Any:
        """Call the handler of update *name* in the workflow and return its result, as `Handle.update` does."""
        options: Any = {"type": type, "wait": wait, "id": id, "timeout": timeout}
        answer: Any = self._thread.call(lambda: self._handle.update(name, *args, **options))
        return answer if wait == "completed" else SyncUpdateHandle[Any](self._thread, answer)

    @overload
    def state(self, key: str, default: None = None, *, type: "Form[T]") -> T | None: ...
    @overload
    def state(self, key: str, default: D, *, type: "Form[T]") -> T | D: ...
    @overload
    def state(self, key: str, default: Any = None, *, type: None = None) -> Any: ...
    def state(self, key: str, default: Any = None, *, type: Any = None) -> Any:
        """Return the value of *key* in the workflow's durable state, as `Handle.state` does."""
        return self._thread.call(lambda: self._handle.state(key, default, type=type))

    def compensate(self, location: Location | str) -> "SyncHandle[None]":
        """Compensate the saga step at this location manually, and return the handle of the workflow that does it."""
        return SyncHandle(self._thread, self._thread.call(lambda: self._handle.compensate(location)))


class SyncUpdateHandle(Generic[T]):
    """A blocking `UpdateHandle`: `result` waits."""

    def __init__(self, thread: _LoopThread, handle: UpdateHandle[T]) -> None:
        self._thread = thread
        self._handle = handle

    def __repr__(self) -> str:
        return repr(self._handle)

    @property
    def id(self) -> str:
        """The id of the update; an update sent again with this id does not run again."""
        return self._handle.id

    def result(self, timeout: Duration | None = None) -> T:
        """Wait for the handler and return its result, as `UpdateHandle.result` does."""
        return self._thread.call(lambda: self._handle.result(timeout))


class SyncSubscription:
    """A blocking `Subscription`: an iterator that waits for each message and never ends."""

    def __init__(self, thread: _LoopThread, subscription: Subscription) -> None:
        self._thread = thread
        self._subscription = subscription
        thread.call(subscription.__aenter__)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return self._thread.call(self._subscription.__anext__)


class SyncEngine:
    """A blocking `Engine` for code without an event loop: the same options and verbs; each returns when it is done.

    ``with SyncEngine("sqlite:///shop.db") as engine: engine.execute(checkout, order)``. Threads may share it, processes
    may not: open it after a fork. In async code use `Engine`.
    """

    @_parameters_of(Engine.__init__)
    def __init__(self, *args: Any, **options: Any) -> None:
        self._make: Callable[[], Engine] = lambda: Engine(*args, **options)
        self._engine = self._make()  # raises for bad options
        self._thread: _LoopThread | None = None

    def __enter__(self) -> Self:
        _check_no_running_loop()
        if self._thread is not None:
            raise StoreError("this engine is already open; create another one")
        # A new engine, because it is named after its process, and the other may have been created before a fork.
        self._engine = self._make()
        self._thread = _LoopThread(self._engine)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.close()

    def run(self) -> None:
        """Serve until the process receives SIGTERM or SIGINT, then drain and return.

        Call it inside the ``with``, in the main thread: Python handles signals in no other thread.
        """
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                "run() must be called in the main thread, which handles signals; in another thread, leave the `with`"
            )
        thread, worker, stop = self._open_thread(), self._engine.worker, asyncio.Event()
        handlers = {
            number: signal.signal(number, lambda *_: thread.call_soon(stop.set))
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            thread.call(stop.wait)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler or signal.SIG_DFL)
        thread.call(worker.stop)

    @overload
    def start(
        self,
        workflow: Callable[[Context, *Ts], Coroutine[Any, Any, R]],
        /,
        *args: *Ts,
        **options: Unpack[StartOptions],
    ) -> SyncHandle[R]: ...
    @overload
    def start(self, workflow: WorkflowRef[R], /, *args: Any, **options: Unpack[StartOptions]) -> SyncHandle[R]: ...
    @overload
    def start(self, workflow: str, /, *args: Any, **options: Unpack[StartOptions]) -> SyncHandle[Any]: ...
    def start(  # type: ignore[misc]  # mypy does not see that *args: Any takes any *Ts
        self, workflow: Any, /, *args: Any, **options: Unpack[StartOptions]
    ) -> SyncHandle[Any]:
        """Start a workflow and return its handle, as `Engine.start` does."""
        thread = self._open_thread()
        return SyncHandle(thread, thread.call(lambda: self._engine.start(workflow, *args, **options)))

    @overload
    def execute(
        self,
        workflow: Callable[[Context, *Ts], Coroutine[Any, Any, R]],
        /,
        *args: *Ts,
        **options: Unpack[StartOptions],
    ) -> R: ...
    @overload
    def execute(self, workflow: WorkflowRef[R], /, *args: Any, **options: Unpack[StartOptions]) -> R: ...
    @overload
    def execute(self, workflow: str, /, *args: Any, **options: Unpack[StartOptions]) -> Any: ...
    def execute(  # type: ignore[misc]  # as above
        self, workflow: Any, /, *args: Any, **options: Unpack[StartOptions]
    ) -> Any:
        """Start a workflow and wait for its result."""
        return self._open_thread().call(lambda: self._engine.execute(workflow, *args, **options))

    @overload
    def signal_with_start(
        self,
        workflow: Callable[[Context, *Ts], Coroutine[Any, Any, R]],
        /,
        *args: *Ts,
        **options: Unpack[SignalOptions],
    ) -> SyncHandle[R]: ...
    @overload
    def signal_with_start(
        self, workflow: WorkflowRef[R], /, *args: Any, **options: Unpack[SignalOptions]
    ) -> SyncHandle[R]: ...
    @overload
    def signal_with_start(self, workflow: str, /, *args: Any, **options: Unpack[SignalOptions]) -> SyncHandle[Any]: ...
    def signal_with_start(  # type: ignore[misc]  # as above
        self, workflow: Any, /, *args: Any, **options: Unpack[SignalOptions]
    ) -> SyncHandle[Any]:
        """Signal the open execution of *id*, or start one with the signal, as `Engine.signal_with_start` does."""
        thread = self._open_thread()
        return SyncHandle(thread, thread.call(lambda: self._engine.signal_with_start(workflow, *args, **options)))

    @overload
    def update_with_start(
        self,
        workflow: Callable[[Context, *Ts], Coroutine[Any, Any, Any]],
        /,
        *args: *Ts,
        type: "Form[T]",
        **options: Unpack[UpdateOptions],
    ) -> T: ...
    @overload
    def update_with_start(
        self,
        workflow: Callable[[Context, *Ts], Coroutine[Any, Any, Any]],
        /,
        *args: *Ts,
        type: None = None,
        **options: Unpack[UpdateOptions],
    ) -> Any: ...
    @overload
    def update_with_start(
        self, workflow: WorkflowRef[Any] | str, /, *args: Any, type: "Form[T]", **options: Unpack[UpdateOptions]
    ) -> T: ...
    @overload
    def update_with_start(
        self, workflow: WorkflowRef[Any] | str, /, *args: Any, type: None = None, **options: Unpack[UpdateOptions]
    ) -> Any: ...
    def update_with_start(  # type: ignore[misc]  # as above
        self, workflow: Any, /, *args: Any, type: Any = None, **options: Unpack[UpdateOptions]
    ) -> Any:
        """Update the open execution of *id*, or start one with the update, as `Engine.update_with_start` does."""
        return self._open_thread().call(lambda: self._engine.update_with_start(workflow, *args, type=type, **options))

    @overload
    def handle(
        self,
        entity_id: str,
        run_id: str | None = None,
        *,
        execution_id: str | None = None,
        workflow: Workflow[..., R],
    ) -> SyncHandle[R]: ...
    @overload
    def handle(
        self,
        entity_id: str,
        run_id: str | None = None,
        *,
        execution_id: str | None = None,
        workflow: str | None = None,
    ) -> SyncHandle[Any]: ...
    def handle(
        self,
        entity_id: str,
        run_id: str | None = None,
        *,
        execution_id: str | None = None,
        workflow: Any = None,
    ) -> SyncHandle[Any]:
        """Return a handle to a workflow by its id, as `Engine.handle` does."""
        thread = self._open_thread()
        return SyncHandle(thread, self._engine.handle(entity_id, run_id, execution_id=execution_id, workflow=workflow))

    def start_flow(
        self, goals: "Sequence[Goal]", init: Mapping[str, object] | None = None, **options: Unpack[FlowOptions]
    ) -> SyncHandle[dict[str, Any]]:
        """Start a flow that leads to *goals*, given the values of *init*, as `Engine.start_flow` does."""
        thread = self._open_thread()
        return SyncHandle(thread, thread.call(lambda: self._engine.start_flow(goals, init, **options)))

    def subscribe(self, topic: str) -> SyncSubscription:
        """Return an iterator over the messages published on *topic* from now on; each step waits for the next one."""
        thread = self._open_thread()
        return SyncSubscription(thread, self._engine.subscribe(topic))

    resolve = _sync_engine_verb(Engine.resolve)
    reject = _sync_engine_verb(Engine.reject)
    list = _sync_engine_verb(Engine.list)
    workers = _sync_engine_verb(Engine.workers)
    plan = _sync_engine_verb(Engine.plan)
    register_step = _sync_engine_verb(Engine.register_step)
    update_step = _sync_engine_verb(Engine.update_step)
    remove_step = _sync_engine_verb(Engine.remove_step)
    steps = _sync_engine_verb(Engine.steps)
    step_health = _sync_engine_verb(Engine.step_health)
    complete_work = _sync_engine_verb(Engine.complete_work)
    fail_work = _sync_engine_verb(Engine.fail_work)
    purge = _sync_engine_verb(Engine.purge)
    delete = _sync_engine_verb(Engine.delete)
    deletions = _sync_engine_verb(Engine.deletions)
    export = _sync_engine_verb(Engine.export)
    import_ = _sync_engine_verb(Engine.import_)

    def _open_thread(self) -> _LoopThread:
        if self._thread is None:
            raise _not_open()
        return self._thread


def _not_open() -> StoreError:
    return StoreError("the engine is not open; use it inside `with SyncEngine(...) as engine:`")


def _check_no_running_loop() -> None:
    if asyncio._get_running_loop() is not None and not _in_notebook_cell():
        raise RuntimeError(
            "SyncEngine blocks, and an event loop runs in this thread; in async code use Engine: "
            "`async with Engine(...) as engine:` and `await` its verbs"
        )


def _in_notebook_cell() -> bool:
    """Whether the caller is a notebook cell, where the kernel's own loop runs and every cell blocks it."""
    frame = inspect.currentframe()
    while frame is not None and not frame.f_code.co_flags & inspect.CO_COROUTINE:
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in ("IPython", "ipykernel")
