"""The workflow's own deterministic event loop: runs what is ready, in order, until nothing is.

It has no clock, no selector and no threads. Time is that of the entry being delivered; `call_later` is a durable
timer; a task is a strand with a place in the history. What cannot be replayed raises `NotDeterministic` and says what
to use instead.

Traps of asyncio that are dealt with here, each with a test:

- `asyncio.wait` iterates sets: see `resurgam.runtime.loop.futures`;
- `asyncio.as_completed` puts bare coroutines into a set, whose order is that of their addresses: refused;
- `asyncio.wait_for` makes a task on 3.11 but not later: that task stays in the caller's strand, so that a history
  does not depend on the Python that wrote it;
- asynchronous generators that are left half-way are kept until the run ends: otherwise the garbage collector would
  decide when their clean-up runs;
- `asyncio.all_tasks` gives a set that was filled in the order of addresses: refused;
- running a tick inside a task of the worker's loop confuses `asyncio.current_task` from 3.14 on: ticks are run from a
  plain callback, by whoever calls `run`.
"""

import asyncio
import sys
from asyncio import events as asyncio_events
from asyncio import futures
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextvars import Context, copy_context
from types import CodeType, FrameType
from typing import Any, NoReturn, TypeVar, TypeVarTuple, cast

from resurgam.core.errors import ContinueAsNew, Evicted, HistoryDiverged, NotDeterministic
from resurgam.runtime.loop.calls import DurableCalls
from resurgam.runtime.loop.futures import BareFuture, Durable, WorkflowTask
from resurgam.runtime.loop.guard import ticks
from resurgam.runtime.loop.interrupts import reraise_ctrl_c
from resurgam.runtime.loop.scope import Scope, current

_SLEEP_OVER = futures._set_result_unless_cancelled  # type: ignore[attr-defined]  # what `asyncio.sleep` has called

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


_ACTIVITY = "put it into an activity and call ctx.activity(...), or for a short side effect ctx.run(...)"
_FORBIDDEN = {
    "run_in_executor": f"threads and executors cannot be replayed; {_ACTIVITY}",
    "call_soon_threadsafe": "another thread may not reach into a workflow; send it a signal instead",
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


class WorkflowLoop(asyncio.AbstractEventLoop):
    """The event loop that one execution's code sees as the running one."""

    def __init__(self, seed: str, calls: DurableCalls) -> None:
        self.seed = seed
        self.tasks: dict[WorkflowTask[Any], None] = {}
        # Whether a strand has ended otherwise than by returning: nobody can say what else it would have come to.
        self.interrupted = False
        self.open = False
        self.on_error: Callable[[dict[str, Any]], None] = lambda _: None
        self._calls = calls
        self._verdict = calls.verdict
        self._ready: deque[asyncio.Handle] = deque()
        self._conditions: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._generators: dict[int, AsyncGenerator[Any, Any]] = {}
        self._running = False
        self._outside: tuple[asyncio.AbstractEventLoop | None, Any, bool] = (None, (None, None), False)

    def scope(self) -> Scope:
        """Return the strand that is running."""
        return self._calls.scope()

    # Running.

    def __enter__(self) -> None:
        """Be the running loop of this thread, for as many ticks as are run inside the ``with``."""
        self._outside = asyncio_events._get_running_loop(), sys.get_asyncgen_hooks(), ticks.now
        asyncio_events._set_running_loop(self)
        sys.set_asyncgen_hooks(firstiter=self._keep, finalizer=self._keep)
        self._running = ticks.now = True

    def __exit__(self, *_: object) -> None:
        """Leave everything as it was."""
        outer, hooks, ticks.now = self._outside
        self._running = False
        sys.set_asyncgen_hooks(*hooks)
        asyncio_events._set_running_loop(outer)

    def run(self) -> None:
        """Run until nothing is ready; it must have been entered."""
        while self._ready or self._wake_conditions():
            handle = self._ready.popleft()
            if not handle._cancelled:
                try:
                    handle._run()
                except (SystemExit, KeyboardInterrupt) as error:
                    reraise_ctrl_c(error)  # else the task that raised it holds it, and the execution sees it there
            if self._verdict.reason is not None:
                return
        if self._generators:
            self._generators = {key: kept for key, kept in self._generators.items() if _is_alive(kept)}

    def _keep(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generators[id(generator)] = generator

    def _wake_conditions(self) -> bool:
        """Settle the waiters of `add_condition` whose condition holds now; whether there were any."""
        for waiter, predicate in list(self._conditions.items()):
            if waiter.done():
                del self._conditions[waiter]
                continue
            try:
                holds = predicate()
            except asyncio.CancelledError:
                waiter.cancel()
            except BaseException as error:  # noqa: BLE001 -- the user's predicate failed: whoever awaits it hears of it
                reraise_ctrl_c(error)
                waiter.set_exception(RuntimeError(repr(error)) if isinstance(error, StopIteration) else error)
            else:
                if not holds:
                    continue
                waiter.set_result(None)
            del self._conditions[waiter]
        return bool(self._ready)

    def add_condition(self, predicate: Callable[[], bool]) -> asyncio.Future[None]:
        """Return a future that is settled as soon as *predicate* holds when nothing else is ready."""
        waiter = self.create_future()
        self._conditions[waiter] = predicate
        return waiter

    def unwind(self) -> None:
        """Close every task and generator that is still alive. The recorder must refuse durable calls by now."""
        outer = asyncio_events._get_running_loop()
        asyncio_events._set_running_loop(self)
        self.open = True
        try:
            for task in list(self.tasks):
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # else asyncio complains of each
                _close(task.get_coro())
            for generator in list(self._generators.values()):
                _close(generator)
        finally:
            self.open = False
            asyncio_events._set_running_loop(outer)
            self.tasks.clear()
            self._generators.clear()
            self._conditions.clear()
            self._ready.clear()

    # What asyncio asks of a loop.

    def time(self) -> float:
        """Return the workflow's time in seconds."""
        return self._calls.now / 1000

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Run *callback* in this tick, after what is ready now."""
        if not self.open and self._verdict.reason is None:
            raise NotDeterministic(
                "something of a workflow was touched from outside its own code, such as an asyncio.Event that two "
                "workflows share; send a signal instead"
            )
        handle = asyncio.Handle(callback, args, self, context)
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

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future without a place."""
        return BareFuture(self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T] | Durable[T],
        *,
        name: object = None,
        context: Context | None = None,
        **_: object,
    ) -> asyncio.Task[T]:
        """Begin a strand of its own at the next place of the running one; a durable future is returned as it is."""
        if isinstance(coro, Durable):
            return coro  # type: ignore[return-value]  # all that a TaskGroup asks of a task, a future has
        if not asyncio.iscoroutine(coro):
            raise TypeError(f"a coroutine was expected, got {coro!r}")
        try:
            task = self._begin(coro, sys._getframe(1), context)
        except (ContinueAsNew, HistoryDiverged, Evicted):
            # The verdict ends the tick. Raising it here would leave the other coroutines of a gather never awaited.
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
                "asyncio.as_completed over bare coroutines visits them in the order of their addresses; "
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
        place: str,
        context: Context | None = None,
        *,
        shared: bool = False,
    ) -> WorkflowTask[T]:
        """Run *coro* as a task in *scope*, which ends with it unless it is *shared* with its creator."""
        own = copy_context() if context is None else context.copy()
        own.run(current.set, scope)
        task = WorkflowTask(coro, loop=self, context=own, scope=scope, place=place)
        self.tasks[task] = None
        # In its own context: what an edit puts at the end of the strand is asked for by the strand.
        task.add_done_callback(self._ended_within if shared else self._ended, context=own)
        return task

    def _ended_within(self, task: asyncio.Task[Any]) -> None:
        self.tasks.pop(task, None)  # type: ignore[call-overload]  # only workflow tasks have this callback
        # Asking task.exception() would count as somebody having looked at it, and hide one that nobody does.
        self.interrupted |= task.cancelled() or task._exception is not None

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._ended_within(task)
        if not task.cancelled() and task._exception is None:
            self._calls.close_scope(task.scope)  # type: ignore[attr-defined]  # as above
        else:
            self._calls.cut_scope(task.scope)  # type: ignore[attr-defined]  # as above

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report what asyncio has nobody else to tell."""
        self.on_error(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Report what asyncio has nobody else to tell."""
        self.on_error(context)

    def get_debug(self) -> bool:
        """Debug mode is the outer loop's business."""
        return False

    def is_running(self) -> bool:
        """Whether a tick is being run."""
        return self._running

    def is_closed(self) -> bool:
        """A workflow's loop is dropped, never closed."""
        return False

    def get_task_factory(self) -> None:
        """Tasks are strands; there is no factory to replace."""
        return


def _forbid(name: str, remedy: str) -> None:
    def refuse(self: WorkflowLoop, *args: object, **kwargs: object) -> NoReturn:
        raise NotDeterministic(f"loop.{name}() in workflow code: {remedy}")

    refuse.__name__ = name
    setattr(WorkflowLoop, name, refuse)


for _name, _remedy in _FORBIDDEN.items():
    _forbid(_name, _remedy)


class _DurableTimerHandle(asyncio.TimerHandle):
    """The handle of a `call_later`; cancelling it calls the durable timer off."""

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
            # Recorded code cancelled this `asyncio.sleep`; code that awaits it now would otherwise wait for ever.
            self._args[0].cancel()

    def cancel(self) -> None:
        """Call the timer off."""
        asyncio.Handle.cancel(self)
        self._timer.cancel()


def _caller(frame: FrameType | None) -> CodeType | None:
    """Return the code that asked for a task, past asyncio's own ways of asking."""
    while frame is not None and frame.f_code in _PASSED_THROUGH:
        frame = frame.f_back
    if frame is not None and frame.f_code.co_name == "<setcomp>":
        frame = frame.f_back
    return None if frame is None else frame.f_code


def _is_alive(generator: AsyncGenerator[Any, Any]) -> bool:
    return getattr(generator, "ag_frame", None) is not None


def _close(coroutine: Any) -> None:
    """Unwind a coroutine that will not go on. What its clean-up raises, or awaits, is of no account any more."""
    try:
        if isinstance(coroutine, AsyncGenerator):
            coroutine.aclose().send(None)
        else:
            coroutine.close()
    except BaseException as error:  # noqa: BLE001 -- see above
        reraise_ctrl_c(error)
