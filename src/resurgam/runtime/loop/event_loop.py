"""The deterministic event loop of a workflow: it runs ready callbacks in order until none is left.

It has no clock, no selector and no threads. Its time is that of the entry being delivered; `call_later` is a durable
timer; a task is a scope with a location in the history. Calls that cannot be replayed raise `NotDeterministic` with a
remedy.

Traps of asyncio handled here, each with a test:

- `asyncio.wait` iterates sets: see `resurgam.runtime.loop.futures`;
- `asyncio.as_completed` puts bare coroutines into a set, which is ordered by their addresses: refused;
- `asyncio.wait_for` creates a task on 3.11 but not later: that task stays in the caller's scope, so that a history
  does not depend on the Python that wrote it;
- asynchronous generators that are abandoned are kept until the run ends: otherwise the garbage collector would decide
  when their clean-up runs;
- `asyncio.all_tasks` returns a set in the order of addresses: refused;
- agent frameworks give synchronous callbacks to an executor, and chunks of a stream to `call_soon_threadsafe`: a callback
  is workflow code and runs at once; a call from the loop's own thread is `call_soon`;
- `asyncio.eager_task_factory` creates tasks past the loop, from 3.12 on: here it is `create_task`, so that they have scopes
  and a history does not depend on the Python that wrote it;
- running a tick inside a task of the worker's loop breaks `asyncio.current_task` from 3.14 on: the caller of `run` uses
  a plain callback (`outside_task`).
"""

import asyncio
import functools
import sys
from asyncio import events as asyncio_events
from asyncio import futures
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextvars import Context, copy_context
from threading import get_ident
from types import CodeType, FrameType
from typing import Any, NoReturn, TypeVar, TypeVarTuple, cast

from resurgam.core.errors import ContinueAsNew, Evicted, HistoryDiverged, NotDeterministic
from resurgam.runtime.loop.calls import DurableCalls
from resurgam.runtime.loop.forbidden import RUN_INLINE
from resurgam.runtime.loop.futures import BareFuture, Durable, WorkflowTask
from resurgam.runtime.loop.guard import ticking
from resurgam.runtime.loop.interrupts import reraise_ctrl_c
from resurgam.runtime.loop.scope import Scope, current

_get_running_loop, _set_running_loop = asyncio_events._get_running_loop, asyncio_events._set_running_loop
_new_handle = asyncio.Handle.__new__
_SLEEP_OVER = futures._set_result_unless_cancelled  # type: ignore[attr-defined]  # what `asyncio.sleep` has called

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


_ACTIVITY = "put it into an activity and call ctx.activity(...), or for a short side effect ctx.run(...)"
_FORBIDDEN = {
    "run_in_executor": f"threads and executors cannot be replayed; {_ACTIVITY}",
    "call_soon_threadsafe": "another thread may not call into a workflow; send it a signal instead",
    "add_signal_handler": "handle signals of the operating system in the program that runs the engine",
    "remove_signal_handler": "handle signals of the operating system in the program that runs the engine",
    "run_forever": "a workflow's loop is run by the engine",
    "run_until_complete": "a workflow's loop is run by the engine; use await",
    "stop": "a workflow's loop is run by the engine; return from the workflow to end it",
    **dict.fromkeys(
        (
            *("close", "set_debug", "set_default_executor", "set_task_factory", "shutdown_asyncgens"),
            *("get_exception_handler", "set_exception_handler", "shutdown_default_executor"),
        ),
        "a workflow's loop is set up and run by the engine",
    ),
} | dict.fromkeys(
    (
        *("create_connection", "create_server", "create_unix_connection", "create_unix_server", "start_tls"),
        *("create_datagram_endpoint", "connect_accepted_socket", "sendfile", "getaddrinfo", "getnameinfo"),
        *("sock_recv", "sock_recv_into", "sock_recvfrom", "sock_recvfrom_into", "sock_sendall", "sock_sendto"),
        *("sock_connect", "sock_accept", "sock_sendfile", "add_reader", "remove_reader", "add_writer"),
        *("remove_writer", "connect_read_pipe", "connect_write_pipe", "subprocess_shell", "subprocess_exec"),
    ),
    f"sockets, pipes and subprocesses cannot be replayed; {_ACTIVITY}",
)

_PASSED_THROUGH = {asyncio.ensure_future.__code__, asyncio.create_task.__code__}
if hasattr(asyncio.tasks, "_ensure_future"):
    _PASSED_THROUGH.add(asyncio.tasks._ensure_future.__code__)


_AS_COMPLETED = {asyncio.as_completed.__code__}
if hasattr(asyncio.tasks, "_AsCompletedIterator"):  # from 3.13
    _AS_COMPLETED.add(asyncio.tasks._AsCompletedIterator.__init__.__code__)


_of_workflows: set[int] = set()
"""The ids of the asynchronous generators that workflows have begun and that are not closed."""


_hooks: dict[int, tuple[object, tuple[Any, Any]]] = {}
"""For each thread by its id the hook for asynchronous generators that workflows set there, and the earlier hooks."""
_NO_HOOK = (object(), (None, None))  # no hook is this object


def _set_hooks(thread: int) -> None:
    """Let the hooks of this thread tell the generators of workflows from those of the outer loop.

    They stay as long as the outer loop runs, which restores the earlier ones itself: to set them for every tick costs
    as much as a durable call, since Python audits it.
    """
    outer = sys.get_asyncgen_hooks()

    def begun(generator: AsyncGenerator[Any, Any]) -> None:
        loop = _get_running_loop()
        if type(loop) is WorkflowLoop:
            loop.keep(generator)
        elif outer.firstiter is not None:
            outer.firstiter(generator)

    def dropped(generator: AsyncGenerator[Any, Any]) -> None:
        # Of a run that was dropped and not closed: its clean-up must not run in another loop.
        if id(generator) in _of_workflows:
            _of_workflows.discard(id(generator))
        elif outer.finalizer is not None:
            outer.finalizer(generator)

    _hooks[thread] = begun, outer
    sys.set_asyncgen_hooks(firstiter=begun, finalizer=dropped)


class WorkflowLoop(asyncio.AbstractEventLoop):
    """The event loop that one execution's code sees as the running one."""

    def __init__(self, seed: str, calls: DurableCalls) -> None:
        self.seed = seed
        self.tasks: dict[WorkflowTask[Any], None] = {}
        # Whether a task has ended otherwise than by returning: the calls it would have made are unknown.
        self.interrupted = False
        self.open = False
        self.on_error: Callable[[dict[str, Any]], None] = _ignore
        self._calls = calls
        self._verdict = calls.verdict
        self._ready: deque[asyncio.Handle] = deque()
        self._conditions: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._generators: dict[int, AsyncGenerator[Any, Any]] = {}
        # The thread that has entered this loop, the running loop before that, and whether that was a tick.
        self._thread = 0
        self._outer: asyncio.AbstractEventLoop | None = None
        self._inside_tick = False

    def scope(self) -> Scope:
        """Return the running scope."""
        return self._calls.scope()

    # Running.

    def enter(self) -> None:
        """Become the running loop of this thread, for the ticks run until `leave`."""
        self._thread = thread = get_ident()
        self._outer, self._inside_tick = _get_running_loop(), thread in ticking
        if sys.get_asyncgen_hooks()[0] is not _hooks.get(thread, _NO_HOOK)[0]:
            _set_hooks(thread)
        _set_running_loop(self)
        ticking.add(thread)

    def leave(self) -> None:
        """Restore the outer loop."""
        if not self._inside_tick:
            ticking.discard(self._thread)
        _set_running_loop(self._outer)
        if self._outer is None:
            sys.set_asyncgen_hooks(*_hooks.get(self._thread, _NO_HOOK)[1])

    def __enter__(self) -> None:
        self.enter()

    def __exit__(self, *_: object) -> None:
        self.leave()

    def run(self) -> None:
        """Run until nothing is ready; the loop must have been entered."""
        ready, verdict = self._ready, self._verdict
        while ready or (self._conditions and self._wake_conditions()):
            handle = ready.popleft()
            if not handle._cancelled:
                try:
                    # What `Handle._run` does, without its call.
                    handle._context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]
                except (SystemExit, KeyboardInterrupt) as error:
                    reraise_ctrl_c(error)  # otherwise the task holds the error, and the execution finds it there
                except BaseException as error:  # noqa: BLE001 -- as asyncio does: a callback's error ends nothing else
                    self.on_error({"message": f"Exception in callback {handle!r}", "exception": error})
            if verdict.reason is not None:
                return
        if self._generators:
            self._drop_finished()

    def keep(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Keep a generator that the code has begun until it has finished or the run ends."""
        self._generators[id(generator)] = generator
        _of_workflows.add(id(generator))

    def _drop_finished(self) -> None:
        for key, generator in list(self._generators.items()):
            if getattr(generator, "ag_frame", None) is None:
                del self._generators[key]
                _of_workflows.discard(key)

    def _wake_conditions(self) -> bool:
        """Settle the waiters of `add_condition` whose condition holds now; return whether a callback became ready."""
        for waiter, predicate in list(self._conditions.items()):
            if waiter.done():
                del self._conditions[waiter]
                continue
            try:
                holds = predicate()
            except asyncio.CancelledError:
                waiter.cancel()
            except BaseException as error:  # noqa: BLE001 -- the user's predicate failed: raised to the awaiting code
                reraise_ctrl_c(error)
                waiter.set_exception(RuntimeError(repr(error)) if isinstance(error, StopIteration) else error)
            else:
                if not holds:
                    continue
                waiter.set_result(None)
            del self._conditions[waiter]
        return bool(self._ready)

    def add_condition(self, predicate: Callable[[], bool]) -> asyncio.Future[None]:
        """Return a future that settles as soon as *predicate* holds while nothing else is ready."""
        waiter = self.create_future()
        self._conditions[waiter] = predicate
        return waiter

    def unwind(self) -> None:
        """Close all live tasks and generators. The recorder must already refuse durable calls."""
        if not self.tasks and not self._generators:
            self._conditions.clear()
            self._ready.clear()
            return
        outer = _get_running_loop()
        _set_running_loop(self)
        self.open = True
        try:
            for task in list(self.tasks):
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # otherwise asyncio warns for each
                _close(task.get_coro())
                if isinstance(waiter := task._fut_waiter, Durable):  # type: ignore[attr-defined]  # typeshed omits it
                    # Otherwise the two refer to each other. Not its own method: nothing is to be recorded.
                    asyncio.Future.cancel(waiter)
            for generator in list(self._generators.values()):
                _close(generator)
            self._drop_finished()
        finally:
            self.open = False
            _set_running_loop(outer)
            self.tasks.clear()
            self._generators.clear()
            self._conditions.clear()
            self._ready.clear()

    def detach(self) -> None:
        """Let go of the execution, whose code is unwound: the two refer to each other."""
        self.on_error = _ignore
        del self._calls

    # The interface of an asyncio event loop.

    def time(self) -> float:
        """Return the workflow's time in seconds."""
        return self._calls.now / 1000

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Run *callback* in this tick, after the callbacks that are ready now."""
        if not self.open and self._verdict.reason is None:
            raise NotDeterministic(
                "an object of a workflow was used from outside its own code, such as an asyncio.Event that two "
                "workflows share; send a signal instead"
            )
        # Without `Handle.__init__`, which asks the loop whether to keep a traceback.
        made: Any = _new_handle(asyncio.Handle)
        made._callback, made._args, made._loop = callback, args, self
        made._context = copy_context() if context is None else context
        made._cancelled = False
        made._repr = made._source_traceback = None
        handle: asyncio.Handle = made
        self._ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Run *callback* when a durable timer has fired."""
        timer = self._calls.start_timer(delay)
        return _DurableTimerHandle(timer, self.time() + delay, callback, args, self, context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Run *callback* when a durable timer has fired."""
        return self.call_later(when - self.time(), callback, *args, context=context)

    def call_soon_threadsafe(  # type: ignore[override]  # refused whatever its arguments
        self, *call: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Run a callback in this tick if an agent framework calls from the loop's own thread; refuse any other call."""
        if _get_running_loop() is not self or not _runs_inline(sys._getframe(1)):
            raise _refusal("call_soon_threadsafe")
        return self.call_soon(*call, context=context)

    def run_in_executor(self, *call: Any) -> asyncio.Future[Any]:  # type: ignore[override]  # as above
        """Run a synchronous callback of an agent framework at once, in this thread; refuse any other call."""
        if not _runs_inline(sys._getframe(1)):
            raise _refusal("run_in_executor")
        _, function, *arguments = call
        future = self.create_future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:  # noqa: BLE001 -- raised where the future is awaited
            future.set_exception(error)
        return future

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future without a location."""
        return BareFuture(self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T] | Durable[T],
        *,
        name: object = None,
        context: Context | None = None,
        **_: object,
    ) -> asyncio.Task[T]:
        """Start a task at the next location of the running scope; return a durable future unchanged."""
        if isinstance(coro, Durable):
            return coro  # type: ignore[return-value]  # it has all members of a task that a TaskGroup uses
        if not asyncio.iscoroutine(coro):
            raise TypeError(f"a coroutine was expected, got {coro!r}")
        try:
            task = self._begin(coro, sys._getframe(1), context)
        except (ContinueAsNew, HistoryDiverged, Evicted):
            # The verdict ends the tick. Raised here, it would leave the other coroutines of a gather never awaited.
            coro.close()
            return cast("asyncio.Task[T]", BareFuture(self))
        except BaseException:
            coro.close()
            raise
        if name is not None:
            task.set_name(str(name))
        return task

    def _begin(self, coro: Coroutine[Any, Any, T], frame: FrameType | None, context: Context | None) -> asyncio.Task[T]:
        caller = _caller(frame)
        if caller in _AS_COMPLETED:
            raise NotDeterministic(
                "asyncio.as_completed visits bare coroutines in the order of their addresses; "
                "create the tasks first: asyncio.as_completed([asyncio.create_task(c) for c in ...])"
            )
        if caller is asyncio.wait_for.__code__:
            scope = self.scope()
            return self.start_task(coro, scope, f"{scope.location}#wait_for", context, shared=True)
        scope = self._calls.branch()
        return self.start_task(coro, scope, str(scope.location), context)

    def start_task(
        self,
        coro: Coroutine[Any, Any, T],
        scope: Scope,
        label: str,
        context: Context | None = None,
        *,
        shared: bool = False,
    ) -> WorkflowTask[T]:
        """Run *coro* as a task in *scope*, which closes with the task unless it is *shared* with its creator."""
        own = copy_context() if context is None else context.copy()
        own.run(current.set, scope)
        task = WorkflowTask(coro, loop=self, context=own, scope=scope, label=label)
        self.tasks[task] = None
        # In its own context: a call that an edit adds at the end of a scope is made by that scope.
        task.add_done_callback(self._task_done if shared else self._scope_done, context=own)
        return task

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self.tasks.pop(task, None)  # type: ignore[call-overload]  # only workflow tasks have this callback
        # Calling task.exception() would mark the exception as retrieved, and silence asyncio's warning.
        self.interrupted |= task.cancelled() or task._exception is not None

    def _scope_done(self, task: asyncio.Task[Any]) -> None:
        self._task_done(task)
        if not task.cancelled() and task._exception is None:
            self._calls.close_scope(task.scope)  # type: ignore[attr-defined]  # as above
        else:
            self._calls.cut_scope(task.scope)  # type: ignore[attr-defined]  # as above

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report an error that asyncio could not raise anywhere."""
        self.on_error(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Report an error that asyncio could not raise anywhere."""
        self.on_error(context)

    # Returns False; debug mode belongs to the outer loop. A builtin, since every future and every task asks.
    get_debug = staticmethod(bool)

    def is_running(self) -> bool:
        """Whether a tick is running."""
        return _get_running_loop() is self

    def is_closed(self) -> bool:
        """Return False; a workflow's loop is dropped, never closed."""
        return False

    def get_task_factory(self) -> None:
        """Return None; the task factory cannot be replaced."""
        return


def _ignore(_: dict[str, Any]) -> None:
    """Drop the report of an error."""


def _refusal(name: str) -> NotDeterministic:
    return NotDeterministic(f"loop.{name}() in workflow code: {_FORBIDDEN[name]}")


def _forbid(name: str) -> None:
    def refuse(self: WorkflowLoop, *args: object, **kwargs: object) -> NoReturn:
        raise _refusal(name)

    refuse.__name__ = name
    setattr(WorkflowLoop, name, refuse)


for _name in _FORBIDDEN.keys() - vars(WorkflowLoop).keys():
    _forbid(_name)


if sys.version_info >= (3, 12):
    # LangGraph calls the factory directly, and bypasses the loop. Beside that of `gather` this is the only patch of asyncio.
    _eager_task_factory = asyncio.eager_task_factory

    @functools.wraps(_eager_task_factory)
    def _start_eagerly(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        if type(loop) is WorkflowLoop:
            return loop.create_task(coro, **options)
        return _eager_task_factory(loop, coro, **options)

    asyncio.eager_task_factory = asyncio.tasks.eager_task_factory = _start_eagerly  # type: ignore[assignment]


class _DurableTimerHandle(asyncio.TimerHandle):
    """The handle of a `call_later`; cancelling it cancels the durable timer."""

    def __init__(
        self,
        timer: asyncio.Future[None],
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: WorkflowLoop,
        context: Context | None,
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self._timer = timer
        timer.add_done_callback(self._fire)

    def _fire(self, timer: asyncio.Future[None]) -> None:
        if self.cancelled():
            return
        if not timer.cancelled():
            self._run()
        elif self._callback is _SLEEP_OVER:  # type: ignore[attr-defined]  # asyncio's own handles have it
            # The recorded code cancelled this `asyncio.sleep`; changed code that awaits it would wait for ever.
            self._args[0].cancel()

    def cancel(self) -> None:
        """Cancel the durable timer."""
        asyncio.Handle.cancel(self)
        self._timer.cancel()


def _caller(frame: FrameType | None) -> CodeType | None:
    """Return the code that creates a task, skipping asyncio's own wrappers."""
    while frame is not None and frame.f_code in _PASSED_THROUGH:
        frame = frame.f_back
    if frame is not None and frame.f_code.co_name == "<setcomp>":
        frame = frame.f_back
    return None if frame is None else frame.f_code


def _runs_inline(frame: FrameType | None) -> bool:
    """Whether a framework makes a call, directly or by `asyncio.to_thread`."""
    if frame is not None and frame.f_code is asyncio.to_thread.__code__:
        frame = frame.f_back
    if frame is None or "-packages" not in frame.f_code.co_filename:  # a user's own package may have such a name
        return False
    return str(frame.f_globals.get("__name__")).partition(".")[0] in RUN_INLINE


def _close(coroutine: Any) -> None:
    """Unwind a coroutine that will not continue. Exceptions and awaits of its clean-up are ignored."""
    try:
        if isinstance(coroutine, AsyncGenerator):
            coroutine.aclose().send(None)
        else:
            coroutine.close()
    except BaseException as error:  # noqa: BLE001 -- ignored, as the docstring says
        reraise_ctrl_c(error)
