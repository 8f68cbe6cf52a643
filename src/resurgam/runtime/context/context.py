"""The API of workflow code. Each verb calls the module of its family, which issues a command to the `Recorder`."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, MutableMapping
from contextvars import copy_context
from datetime import UTC, datetime
from functools import cached_property
from random import Random
from typing import TYPE_CHECKING, Any, Literal, NoReturn, ParamSpec, TypeVar, TypeVarTuple, cast, overload
from uuid import UUID

from resurgam.core import event as events
from resurgam.core.codec import TypeForm, check_size
from resurgam.core.errors import DefinitionError
from resurgam.core.operation import Operation
from resurgam.core.retry import Duration, is_whole
from resurgam.runtime.context import messaging, outbound
from resurgam.runtime.context.activities import fingerprint, resolve_activity, schedule
from resurgam.runtime.context.child_flows import start_flow
from resurgam.runtime.context.children import Child, ChildOptions, OnParentClose, start_child
from resurgam.runtime.context.continuation import Continuation
from resurgam.runtime.context.durable_loop import Break, Continue, DurableLoop, check_bounds, state_codec
from resurgam.runtime.context.fan_out import FanOut, Key
from resurgam.runtime.context.messaging import Promise
from resurgam.runtime.context.race import run_race
from resurgam.runtime.context.removed import Removed
from resurgam.runtime.context.saga import Saga
from resurgam.runtime.context.tags import set_tags
from resurgam.runtime.definitions.definition import Activity, WorkflowRef, refuse_options, workflow_of
from resurgam.runtime.definitions.info import WorkflowInfo
from resurgam.runtime.definitions.signature import result_codec
from resurgam.runtime.loop.closures import check_body
from resurgam.runtime.loop.futures import Durable
from resurgam.runtime.loop.guard import guarded
from resurgam.runtime.loop.scope import ambient
from resurgam.runtime.matching.handlers import Handlers
from resurgam.runtime.matching.mode import Rehearsing
from resurgam.runtime.matching.recorder import ANY, Recorder

if TYPE_CHECKING:
    from typing_extensions import TypeForm as Form

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")
F = TypeVar("F", bound=Callable[..., Any])


class Context:
    """The durable calls of workflow code.

    Durable calls are plain functions that return a future: they get their location in the history when they are called,
    not when they are awaited. `set`, `get`, `clear`, `tag`, `now`, `random`, `uuid4`, `logger` and `info` return plain
    values.
    """

    _step: int | None = None
    """The number given to ``ctx.v``."""

    def __init__(self, recorder: Recorder, handlers: Handlers) -> None:
        self._recorder = recorder
        self._handlers = handlers

    @cached_property
    def logger(self) -> "logging.LoggerAdapter[logging.Logger]":
        """A logger that is silent during replay."""
        return _ReplaySilent(self._recorder)

    @overload
    def activity(self, activity: Activity[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Durable[R]: ...
    @overload
    def activity(self, activity: str, /, *args: Any) -> Durable[Any]: ...
    def activity(self, activity: Any, /, *args: Any, **kwargs: Any) -> Durable[Any]:
        """Run an activity and return the future of its result; raise `ActivityFailed` if its last attempt fails."""
        if kwargs or not isinstance(activity, Activity):
            activity = resolve_activity(activity, kwargs)
        return schedule(self._recorder, activity, args, kwargs, step=self._step)

    @overload
    def run(
        self, function: Callable[[*Ts], Coroutine[Any, Any, R]], /, *args: *Ts, name: str | None = None
    ) -> Durable[R]: ...
    @overload
    def run(self, function: Callable[[*Ts], R], /, *args: *Ts, name: str | None = None) -> Durable[R]: ...
    def run(  # type: ignore[misc]  # mypy does not see that *args: Any takes any *Ts
        self, function: Callable[..., Any], /, *args: Any, name: str | None = None
    ) -> Durable[Any]:
        """Run a side effect once and record its result; it is not retried, and a failure raises `OperationFailed`."""
        label = name or str(getattr(function, "__name__", type(function).__name__))
        result = result_codec(function)
        future = self._recorder.call(events.OperationStarted, label, result, step=self._step)
        command = future.command
        if self._recorder.log.is_open(command):
            limit = self._recorder.settings.max_payload
            operation = Operation(command.seq, label, function, args, result, limit)
            self._recorder.pending.add_operation(operation)
        return future

    def sleep(self, duration: Duration) -> Durable[None]:
        """Wait for a duration, in seconds or as a timedelta, even if the process restarts meanwhile."""
        return self._recorder.start_timer(duration, step=self._step)

    def sleep_until(self, moment: datetime) -> Durable[None]:
        """Wait until a moment; return at once if it is past."""
        deadline = _epoch_ms(moment)
        return self._recorder.wait_until(deadline, f"until {deadline} ms", self._step)

    def set(self, key: str, value: object) -> None:
        """Store a value in the workflow's durable state, which clients can read too."""
        _check_key(key)
        written = self._recorder.payloads.write(ANY, value, f"state {key!r}")
        digest = None if self._recorder.mode.rehearsing else fingerprint(written)
        command = self._recorder.issue(events.StateSet, key, step=self._step, value=written, digest=digest)
        self._recorder.state.set(key, command, written)

    def clear(self, key: str) -> None:
        """Remove a value from the workflow's durable state."""
        _check_key(key)
        self._recorder.state.clear(key, self._recorder.issue(events.StateCleared, key, step=self._step))

    def get(self, key: str, default: T | None = None) -> Any | T:
        """Return a value of the workflow's durable state, as plain JSON types.

        Beside a forgetting loop the value read is recorded, because the entry that set it may be forgotten.
        """
        recorder = self._recorder
        written = recorder.state.get(key)
        if recorder.pending.loops and _is_read_recorded(recorder):
            value, found = events.NULL if written is None else written, written is not None
            read = recorder.issue(events.StateRead, key, step=self._step, value=value, found=found)
            assert isinstance(read, events.StateRead)
            written = read.value if read.found else None
        return default if written is None else recorder.payloads.read(ANY, written, f"state {key!r}")

    def tag(self, /, **tags: str | None) -> None:
        """Change tags of this run, by which `Engine.list` finds it; None removes one.

        Other tags stay. Children that are started from now on inherit the tags, and so do the next attempt and the next
        generation of this workflow.
        """
        set_tags(self._recorder, tags, self._step)

    def branch(
        self,
        function: "Callable[[Context, *Ts], Coroutine[Any, Any, R]]",
        /,
        *args: *Ts,
        name: str | None = None,
    ) -> asyncio.Task[R]:
        """Run ``function(ctx, *args)`` as a task with its own scope; its steps are located below the branch."""
        scope = self._recorder.branch(name, step=self._step)
        return self._recorder.loop.start_task(function(self._plain, *args), scope, str(scope.location))

    @overload
    def map(
        self, function: Activity[[T], R], items: Iterable[T], /, *, key: Key[T] = None, limit: int | None = None
    ) -> asyncio.Future[list[R]]: ...
    @overload
    def map(
        self,
        function: "Callable[[Context, T], Coroutine[Any, Any, R]]",
        items: Iterable[T],
        /,
        *,
        key: Key[T] = None,
        limit: int | None = None,
    ) -> asyncio.Future[list[R]]: ...
    def map(
        self, function: Any, items: Iterable[Any], /, *, key: Key[Any] = None, limit: int | None = None
    ) -> asyncio.Future[list[Any]]:
        """Run an activity, or ``function(ctx, item)``, for each item; return the results in the order of the items.

        Each item is identified by its *key*, by default its JSON: items may be reordered, added or removed while a run
        is open. At most *limit* run at once; the first failure cancels the rest.
        """
        if isinstance(function, str) or not callable(function):
            raise DefinitionError(f"ctx.map needs an activity or an async function of (ctx, item), got {function!r}")
        if key is not None and not callable(key):
            raise DefinitionError(
                f"ctx.map: key must be a function of an item, got {key!r}; write key=lambda item: item.id"
            )
        scope = self._recorder.branch(step=self._step, matching="keyed")
        plain = self._plain

        def start_item(item: Any, key: str) -> "asyncio.Future[Any]":
            if isinstance(function, Activity):
                return schedule(self._recorder, resolve_activity(function, {}), (item,), {}, key=key)
            below = self._recorder.branch(key=key)
            return self._recorder.loop.start_task(function(plain, item), below, str(below.location))

        return FanOut(self._recorder, scope, items, start_item, key=key, limit=limit).start()

    def loop(
        self,
        body: "Callable[[Context, S], Coroutine[Any, Any, Continue[S] | Break[R]]]",
        state: S = None,  # type: ignore[assignment]  # a loop without a state has None
        *,
        forget_every: int | None = 20,
        keep_forgotten: int = 100,
    ) -> asyncio.Task[R]:
        """Run ``body(ctx, state)`` until it returns ``Break(value)``; ``Continue(state)`` starts the next iteration.

        After every *forget_every* iterations their entries are forgotten, so that a loop may run for ever; None keeps
        all entries. Otherwise the body must not share mutable data with the code around it.
        """
        check_bounds(forget_every, keep_forgotten)
        recorder = self._recorder
        if forget_every is not None:
            check_body(body)
            self._handlers.check_all()
        future = recorder.call(
            events.LoopStarted,
            step=self._step,
            state=recorder.payloads.write(state_codec(body), state, "the state of a loop"),
            forget_every=forget_every,
            keep_forgotten=keep_forgotten,
        )
        scope = recorder.scope_below(future.command)
        return recorder.loop.start_task(
            DurableLoop(recorder, self._plain, future, body).run(), scope, str(scope.location)
        )

    @overload
    def listen(self, name: str, /, *, type: "Form[T]", timeout: Duration | None = None) -> Durable[T]: ...
    @overload
    def listen(self, name: str, /, *, timeout: Duration | None = None) -> Durable[Any]: ...
    @overload
    def listen(
        self, name: str, other: str, /, *names: str, type: "Form[T]", timeout: Duration | None = None
    ) -> Durable[tuple[str, T]]: ...
    @overload
    def listen(
        self, name: str, other: str, /, *names: str, timeout: Duration | None = None
    ) -> Durable[tuple[str, Any]]: ...
    def listen(self, *names: str, type: TypeForm = Any, timeout: Duration | None = None) -> Durable[Any]:
        """Receive the next signal: one name gives its value, several give ``(name, value)``.

        Signals stay in the mailbox, in order, until a listener takes them. After *timeout*, raise `SignalTimeout`.
        """
        return messaging.listen(self._recorder, self._handlers, names, type, timeout, step=self._step)

    @overload
    def listen_many(
        self, name: str, /, *, limit: int, type: "Form[T]", timeout: Duration | None = None
    ) -> Durable[list[T]]: ...
    @overload
    def listen_many(self, name: str, /, *, limit: int, timeout: Duration | None = None) -> Durable[list[Any]]: ...
    @overload
    def listen_many(
        self, name: str, other: str, /, *names: str, limit: int, type: "Form[T]", timeout: Duration | None = None
    ) -> Durable[list[tuple[str, T]]]: ...
    @overload
    def listen_many(
        self, name: str, other: str, /, *names: str, limit: int, timeout: Duration | None = None
    ) -> Durable[list[tuple[str, Any]]]: ...
    def listen_many(
        self, *names: str, limit: int, type: TypeForm = Any, timeout: Duration | None = None
    ) -> Durable[Any]:
        """Receive up to *limit* signals at once, as soon as there is one; after *timeout*, return an empty list."""
        if not is_whole(limit, 1):
            raise ValueError(f"listen_many: limit must be a whole number, at least 1, got {limit!r}")
        return messaging.listen(self._recorder, self._handlers, names, type, timeout, step=self._step, limit=limit)

    def signal(self, entity_id: str, name: str, value: object = None) -> Durable[None]:
        """Send a signal to another workflow; raise `SignalFailed` if it does not exist or is closed."""
        return outbound.send(self._recorder, entity_id, name, value, self._step)

    def publish(self, topic: str, value: object = None) -> "asyncio.Future[None]":
        """Publish a message once to the current subscribers of a topic, if there are any."""
        return outbound.publish(self._recorder, topic, value, self._step)

    @overload
    def promise(self, name: str, *, type: "Form[T]", timeout: Duration | None = None) -> Promise[T]: ...
    @overload
    def promise(self, name: str, *, timeout: Duration | None = None) -> Promise[Any]: ...
    def promise(self, name: str, *, type: TypeForm = Any, timeout: Duration | None = None) -> Promise[Any]:
        """Wait for a value given from outside, by the ``promise_id`` of the future or by the name.

        Raise `PromiseRejected` if the promise is rejected, and `PromiseTimeout` after *timeout*. A client that gives a
        value which does not fit *type* gets an error.
        """
        return messaging.promise(self._recorder, name, type, timeout, step=self._step)

    def resolve(self, promise_id: str, value: object = None) -> Durable[bool]:
        """Settle a promise of any workflow by its id; the future tells whether this was the first settlement."""
        return outbound.settle(self._recorder, promise_id, value, self._step)

    def on_query(self, name: str) -> Callable[[F], F]:
        """Register a plain function over the workflow's variables for a query: ``@ctx.on_query("total")``."""
        messaging.check_name(name, "query")

        def register(function: F) -> F:
            self._handlers.on_query(name, function)
            return function

        return register

    def on_update(
        self, name: str, validator: Callable[..., object] | None = None, *, one_at_a_time: bool = False
    ) -> Callable[[F], F]:
        """Register a function, async or plain, for an update; it may make durable calls.

        The sender of the update gets its result or its exception. The *validator* is called first with the same
        arguments; if it raises, the update is rejected and the handler does not run. With *one_at_a_time* the handler
        runs for one update after another, in the order in which they were accepted.
        """
        messaging.check_name(name, "update")
        if not isinstance(one_at_a_time, bool):
            raise DefinitionError(f"update {name!r}: one_at_a_time must be True or False, got {one_at_a_time!r}")

        def register(function: F) -> F:
            self._handlers.on_update(name, function, validator, one_at_a_time=one_at_a_time)
            return function

        return register

    def on_signal(self, name: str) -> Callable[[F], F]:
        """Register a function, async or plain, for signals of this name; it may make durable calls."""
        messaging.check_name(name, "signal")

        def register(function: F) -> F:
            self._handlers.on_signal(name, function)
            return function

        return register

    def handlers_finished(self) -> "asyncio.Future[None]":
        """Wait until no handler of a signal or an update is running, and no received signal waits for one.

        It is not recorded. Await it before the workflow returns or continues as new.
        """
        return self._handlers.all_finished()

    @overload
    def workflow(
        self,
        workflow: "Callable[[Context, *Ts], Coroutine[Any, Any, R]]",
        /,
        *args: *Ts,
        id: str | None = None,
        queue: str | None = None,
        detach: bool = False,
        deferred: bool = False,
        on_parent_close: OnParentClose | None = None,
    ) -> Child[R]: ...
    @overload
    def workflow(
        self,
        workflow: WorkflowRef[R],
        /,
        *args: Any,
        id: str | None = None,
        queue: str | None = None,
        detach: bool = False,
        deferred: bool = False,
        on_parent_close: OnParentClose | None = None,
    ) -> Child[R]: ...
    @overload
    def workflow(
        self,
        workflow: str,
        /,
        *args: Any,
        id: str | None = None,
        queue: str | None = None,
        detach: bool = False,
        deferred: bool = False,
        on_parent_close: OnParentClose | None = None,
    ) -> Child[Any]: ...
    def workflow(  # type: ignore[misc]  # mypy does not see that *args: Any takes any *Ts
        self, workflow: Any, /, *args: Any, **options: Any
    ) -> Child[Any]:
        """Start a child workflow and return the future of its result; raise `ChildWorkflowFailed` if it fails.

        It runs on *queue*, else on the queue of its definition, else on that of this workflow. When this workflow
        closes, *on_parent_close* decides: ``"cancel"`` it (the default), ``"terminate"`` it or ``"abandon"`` it. A
        *deferred* child starts when `Handle.begin` is called. With *detach* the child is independent: awaiting it waits
        for its start only, and returns None.
        """
        refuse_options("ctx.workflow", workflow, options.keys() - set(ChildOptions.__struct_fields__))
        return start_child(self._recorder, workflow_of(workflow), args, ChildOptions(**options), self._step)

    def flow(
        self,
        goals: Iterable[Any],
        init: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
        queue: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        detach: bool = False,
        on_parent_close: OnParentClose | None = None,
    ) -> Child[dict[str, Any]]:
        """Start a goal flow as a child and return the future of its result: the outputs of its goals, by name.

        *goals* are steps, or their ids; *init* is what the flow is given, by attribute. It is planned when it begins,
        from the steps that are registered then. If it fails, or cannot be planned, `ChildWorkflowFailed` is raised. The
        other options are those of `workflow`.
        """
        options = ChildOptions(id=id, queue=queue, detach=detach, on_parent_close=on_parent_close, verb="ctx.flow")
        return start_flow(self._recorder, goals, init, metadata, options, self._step)

    def saga(self) -> Saga:
        """Return a saga: ``async with ctx.saga() as saga: await saga.step(book, trip, undo=cancel)``.

        If the block fails or is cancelled, its steps are compensated in reverse order.
        """
        return Saga(self._recorder, self._step)

    def continue_as_new(self, *args: Any, signals: Literal["carry", "drop"] = "carry") -> NoReturn:
        """End this execution and start the next with these arguments and an empty history; does not return.

        Signals that were not consumed are carried over, unless *signals* is ``"drop"``.
        """
        if signals not in ("carry", "drop"):
            raise ValueError(f"ctx.continue_as_new: signals must be 'carry' or 'drop', got {signals!r}")
        recorder = self._recorder
        recorder.verdict.check_allowed("continue_as_new")
        what = f"arguments of workflow {recorder.started.name!r}"
        written = events.NULL
        if not recorder.mode.rehearsing:
            written = check_size(recorder.settings.max_payload, recorder.workflow.encode(args), what)
        raise recorder.verdict.decide(Continuation(args, signals, written))

    def v(self, version: int) -> "Versioned":
        """Return the same calls with a version, which inserts them before older ones in an open run's history.

        ``ctx.v(2).activity(...)`` for one call; ``with ctx.v(2):`` for every call, task and timer inside.
        """
        return Versioned(self, version)

    @property
    def removed(self) -> "Removed":
        """Notes of calls that were removed from the code: ``await ctx.removed.activity("old")``."""
        return Removed(self._recorder, self._step)

    async def check_version(self, version: int, name: str | None = None) -> int:
        """Return the version of the code that this run belongs to: *version* for new runs, less for older ones."""
        if not is_whole(version, 1):
            raise ValueError(f"check_version: version must be a whole number, at least 1, got {version!r}")
        if name is not None and (not isinstance(name, str) or not name):
            raise ValueError(f"check_version: name must be a non-empty string, got {name!r}")
        return self._recorder.check_version(version, name)

    @property
    def _plain(self) -> "Context":
        """The context without a version, for a new scope, which starts with 1 again."""
        return self

    def race(self, *awaitables: Awaitable[T]) -> Durable[tuple[int, T]]:
        """Wait for the first to settle and return ``(index, value)``; a failed winner raises, losers are cancelled.

        The winner is recorded, so that a later change of the code cannot change it.
        """
        return run_race(self._recorder, awaitables, self._step)

    def until(self, predicate: Callable[[], bool]) -> asyncio.Future[None]:
        """Wait until *predicate* over the workflow's own variables holds."""
        if not callable(predicate) or asyncio.iscoroutinefunction(predicate):
            raise DefinitionError(
                f"ctx.until needs a plain function without arguments, got {predicate!r}; write ctx.until(lambda: total > 3)"
            )
        here = copy_context()

        def holds() -> bool:
            return self._recorder.verdict.without_calls("the predicate of ctx.until", lambda: here.run(predicate))

        return self._recorder.loop.add_condition(holds)

    def now(self) -> datetime:
        """Return the workflow's time, in UTC: the time of the entry being delivered."""
        mode = self._recorder.mode
        if isinstance(mode, Rehearsing) and mode.unknown is not None:
            return cast("datetime", mode.unknown)  # a rehearsal does not know the future time
        return datetime.fromtimestamp(self._recorder.now / 1000, UTC)

    @property
    def random(self) -> Random:
        """Random numbers that are the same on replay, separate for each scope."""
        return self._recorder.scope().random

    def uuid4(self) -> UUID:
        """Return a random UUID that is the same on replay."""
        return UUID(int=self._recorder.scope().ids.getrandbits(128), version=4)

    @property
    def info(self) -> WorkflowInfo:
        """The identity and progress of this execution."""
        started = self._recorder.started
        return WorkflowInfo(
            name=started.name,
            entity_id=started.entity_id,
            execution_id=started.execution_id,
            run_id=started.run_id,
            tree_id=started.tree_id,
            generation=started.generation,
            attempt=started.attempt,
            queue=started.queue,
            parent=started.parent,
            history_length=self._recorder.entry,
            is_replaying=self._recorder.mode.replaying,
        )


class Versioned(Context):
    """A context whose calls have a version."""

    def __init__(self, context: Context, version: int) -> None:
        if not is_whole(version, 1):
            raise ValueError(f"ctx.v: version must be a whole number, at least 1, got {version!r}")
        self._recorder, self._handlers = context._recorder, context._handlers
        self._step = version
        self._context = context._plain

    def __enter__(self) -> None:
        """Apply the version to all calls, tasks and timers of this scope inside the block."""
        assert self._step is not None
        self._recorder.verdict.end_routine()
        ambient.set((self._recorder.scope(), self._step, ambient.get(None)))

    def __exit__(self, *_: object) -> None:
        """Restore the previous version."""
        # Without a token, which would have to be kept here: several scopes may be inside at once.
        inside = ambient.get(None)
        ambient.set(None if inside is None else inside[2])

    @property
    def _plain(self) -> Context:
        return self._context


class _ReplaySilent(logging.LoggerAdapter[logging.Logger]):
    """A logger that is silent during replay."""

    def __init__(self, recorder: Recorder) -> None:
        started = recorder.started
        super().__init__(logging.getLogger(f"resurgam.workflow.{started.name}"), {"entity_id": started.entity_id})
        self._recorder = recorder

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 -- the name is logging's
        return not self._recorder.mode.replaying and super().isEnabledFor(level)

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        with guarded(on=False):  # a logging handler may open a socket or start a thread
            super().log(level, msg, *args, **kwargs)

    def process(self, msg: object, kwargs: MutableMapping[str, Any]) -> tuple[object, MutableMapping[str, Any]]:
        return f"[{(self.extra or {}).get('entity_id')}] {msg}", kwargs


def _is_read_recorded(recorder: Recorder) -> bool:
    """Whether a read of the durable state must be recorded: a forgetting loop runs beside the running scope."""
    if recorder.state.unrecorded:
        return False
    location = recorder.scope().location
    return any(not loop.location.contains(location) for loop in recorder.pending.forgetting_loops())


def _check_key(key: object) -> None:
    if not isinstance(key, str) or not key:
        raise TypeError(f"state key must be a non-empty string, got {key!r}")


def _epoch_ms(moment: datetime) -> int:
    if not isinstance(moment, datetime):
        raise TypeError(f"sleep_until needs an aware datetime, got {moment!r}; use ctx.sleep for a duration")
    if moment.tzinfo is None:
        raise ValueError(f"sleep_until needs an aware datetime, got {moment.isoformat()} without a time zone")
    return round(moment.timestamp() * 1000)
