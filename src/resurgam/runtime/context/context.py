"""What workflow code may call. Each verb makes a intent and hands it to the `Recorder`; nothing is decided here."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping
from contextvars import copy_context
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Any, Literal, NoReturn, ParamSpec, TypeVar, TypeVarTuple, cast, overload
from uuid import UUID

from resurgam.core import event as events
from resurgam.core.codec import TypeForm, check_size
from resurgam.core.errors import DefinitionError
from resurgam.core.operation import Operation
from resurgam.core.retry import Duration, is_whole, milliseconds
from resurgam.runtime.context import messaging, outbound
from resurgam.runtime.context.activities import fingerprint, resolve_activity, schedule
from resurgam.runtime.context.children import Child, ChildOptions, OnParentClose, begin
from resurgam.runtime.context.continuation import Continuation
from resurgam.runtime.context.durable_loop import Break, Continue, DurableLoop, check_bounds, state_codec
from resurgam.runtime.context.fan_out import FanOut, Key
from resurgam.runtime.context.messaging import Promise
from resurgam.runtime.context.race import run_race
from resurgam.runtime.context.removed import Removed
from resurgam.runtime.context.saga import Saga
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
    """The door from a workflow's code to everything durable.

    Durable calls are plain functions that return a future: they take their place in the history when they are called,
    not when they are awaited. `set`, `get`, `clear`, `now`, `random`, `uuid4`, `logger` and `info` return plain values.
    """

    _step: int | None = None
    """The number given to ``ctx.v``."""

    def __init__(self, recorder: Recorder, handlers: Handlers) -> None:
        self._recorder = recorder
        self._handlers = handlers
        self.logger: logging.LoggerAdapter[logging.Logger] = _ReplaySilent(recorder)

    @overload
    def activity(self, activity: Activity[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Durable[R]: ...
    @overload
    def activity(self, activity: str, /, *args: Any) -> Durable[Any]: ...
    def activity(self, activity: Any, /, *args: Any, **kwargs: Any) -> Durable[Any]:
        """Run an activity and return the future of its result; if it fails for good, `ActivityFailed`."""
        return schedule(self._recorder, resolve_activity(activity, kwargs), args, kwargs, step=self._step)

    @overload
    def run(
        self, function: Callable[[*Ts], Coroutine[Any, Any, R]], /, *args: *Ts, name: str | None = None
    ) -> Durable[R]: ...
    @overload
    def run(self, function: Callable[[*Ts], R], /, *args: *Ts, name: str | None = None) -> Durable[R]: ...
    def run(  # type: ignore[misc]  # mypy does not see that *args: Any takes any *Ts
        self, function: Callable[..., Any], /, *args: Any, name: str | None = None
    ) -> Durable[Any]:
        """Run a side effect once and keep what it gave; it is not retried, and failure is `OperationFailed`."""
        label = name or str(getattr(function, "__name__", type(function).__name__))
        result = result_codec(function)
        future = self._recorder.call(events.OperationStarted, label, result, step=self._step)
        command = future.command
        if self._recorder.is_open(command):
            limit = self._recorder.settings.max_payload
            operation = Operation(command.seq, label, function, args, result, limit)
            self._recorder.pending.add_operation(operation)
        return future

    def sleep(self, duration: Duration) -> Durable[None]:
        """Wait this long, in seconds or as a timedelta, however often the process dies meanwhile."""
        return self._recorder.start_timer(milliseconds(duration) / 1000, step=self._step)

    def sleep_until(self, moment: datetime) -> Durable[None]:
        """Wait until a moment; one that is past is over at once."""
        deadline = _epoch_ms(moment)
        return self._recorder.call(
            events.TimerStarted, step=self._step, deadline=deadline, digest=f"until {deadline} ms"
        )

    def set(self, key: str, value: object) -> None:
        """Keep a value in the workflow's durable state, where it can be read from outside too."""
        _check_key(key)
        written = self._recorder.write(ANY, value, f"state {key!r}")
        digest = None if self._recorder.mode.rehearsing else fingerprint(written)
        command = self._recorder.issue(events.StateSet, key, step=self._step, value=written, digest=digest)
        self._recorder.state.set(key, command, written)

    def clear(self, key: str) -> None:
        """Drop a value from the workflow's durable state."""
        _check_key(key)
        self._recorder.state.clear(key, self._recorder.issue(events.StateCleared, key, step=self._step))

    def get(self, key: str, default: T | None = None) -> Any | T:
        """Return a value of the workflow's durable state, as plain JSON types.

        Beside a loop that forgets, what was read is written down: what the loop had set by then may be forgotten.
        """
        recorder = self._recorder
        written = recorder.state.get(key)
        if recorder.pending.loops and recorder.records_reads():
            value, found = events.NULL if written is None else written, written is not None
            read = recorder.issue(events.StateRead, key, step=self._step, value=value, found=found)
            assert isinstance(read, events.StateRead)
            written = read.value if read.found else None
        return default if written is None else recorder.read(ANY, written, f"state {key!r}")

    def branch(
        self,
        function: "Callable[[Context, *Ts], Coroutine[Any, Any, R]]",
        /,
        *args: *Ts,
        name: str | None = None,
    ) -> asyncio.Task[R]:
        """Run ``function(ctx, *args)`` as a strand of its own, whose steps stand below the branch."""
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
        """Run an activity, or ``function(ctx, item)``, for each item; the results come in the order of the items.

        Each item is known by its *key*, by default its own JSON: items may be put in another order, added or left out
        while a run is open. At most *limit* are under way at once; the first failure ends the rest.
        """
        if isinstance(function, str) or not callable(function):
            raise DefinitionError(f"ctx.map: {function!r} is no activity, and no async function of (ctx, item)")
        if key is not None and not callable(key):
            raise DefinitionError(
                f"ctx.map: key must be a function of an item, got {key!r}; write key=lambda item: item.id"
            )
        scope = self._recorder.branch(step=self._step, matching="keyed")
        plain = self._plain

        def begin(item: Any, key: str) -> "asyncio.Future[Any]":
            if isinstance(function, Activity):
                return schedule(self._recorder, resolve_activity(function, {}), (item,), {}, key=key)
            below = self._recorder.branch(key=key)
            return self._recorder.loop.start_task(function(plain, item), below, str(below.location))

        return FanOut(self._recorder, scope, items, begin, key=key, limit=limit).start()

    def loop(
        self,
        body: "Callable[[Context, S], Coroutine[Any, Any, Continue[S] | Break[R]]]",
        state: S = None,  # type: ignore[assignment]  # a loop without a state has None
        *,
        forget_every: int | None = 20,
        keep_forgotten: int = 100,
    ) -> asyncio.Task[R]:
        """Run ``body(ctx, state)`` until it returns ``Break(value)``; ``Continue(state)`` is the next iteration.

        After every *forget_every* iterations what they did is forgotten, so that a loop may run for ever; None keeps
        everything. A body that may be forgotten shares nothing that changes with the code around it.
        """
        check_bounds(forget_every, keep_forgotten)
        recorder = self._recorder
        if forget_every is not None:
            check_body(body)
            self._handlers.check_all()
        future = recorder.call(
            events.LoopStarted,
            step=self._step,
            state=recorder.write(state_codec(body), state, "the state of a loop"),
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

        Signals wait in order until somebody listens. After *timeout* it is `SignalTimeout`.
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
        """Receive up to *limit* signals at once, as soon as there is one; after *timeout* the list is empty."""
        if not is_whole(limit, 1):
            raise ValueError(f"listen_many: limit must be a whole number from 1, got {limit!r}")
        return messaging.listen(self._recorder, self._handlers, names, type, timeout, step=self._step, limit=limit)

    def signal(self, entity_id: str, name: str, value: object = None) -> Durable[None]:
        """Send a signal to another workflow; `SignalFailed` if there is none of that id, or it has ended."""
        return outbound.send(self._recorder, entity_id, name, value, self._step)

    def publish(self, topic: str, value: object = None) -> "asyncio.Future[None]":
        """Tell whoever subscribes to a topic at this moment; nobody need, and nobody is told twice."""
        return outbound.publish(self._recorder, topic, value, self._step)

    @overload
    def promise(self, name: str, *, type: "Form[T]", timeout: Duration | None = None) -> Promise[T]: ...
    @overload
    def promise(self, name: str, *, timeout: Duration | None = None) -> Promise[Any]: ...
    def promise(self, name: str, *, type: TypeForm = Any, timeout: Duration | None = None) -> Promise[Any]:
        """Wait for a value that somebody outside gives, by the ``promise_id`` of the future or by the name.

        Should they reject it, it is `PromiseRejected`; after *timeout*, `PromiseTimeout`. A value that does not fit *type*
        is refused where it is given, as far as it is given from outside of workflow code.
        """
        return messaging.promise(self._recorder, name, type, timeout, step=self._step)

    def resolve(self, promise_id: str, value: object = None) -> Durable[bool]:
        """Settle a promise of some workflow by its id; the future says whether it was the first settlement."""
        return outbound.settle(self._recorder, promise_id, value, self._step)

    def on_query(self, name: str) -> Callable[[F], F]:
        """Answer queries of this name by a plain function over the workflow's variables: ``@ctx.on_query("total")``."""
        messaging.check_name(name, "query")

        def register(function: F) -> F:
            self._handlers.on_query(name, function)
            return function

        return register

    def on_update(
        self, name: str, validator: Callable[..., object] | None = None, *, one_at_a_time: bool = False
    ) -> Callable[[F], F]:
        """Answer updates of this name by a function, async or plain, that may make durable calls.

        The sender of the update is given what it returns or raises. The *validator* is called with the same arguments
        before; if it raises, the update is refused and nothing is begun. With *one_at_a_time* a call of the function
        begins when the one before it has ended, in the order in which the updates were accepted.
        """
        messaging.check_name(name, "update")
        if not isinstance(one_at_a_time, bool):
            raise DefinitionError(f"update {name!r}: one_at_a_time must be True or False, got {one_at_a_time!r}")

        def register(function: F) -> F:
            self._handlers.on_update(name, function, validator, one_at_a_time=one_at_a_time)
            return function

        return register

    def on_signal(self, name: str) -> Callable[[F], F]:
        """Handle signals of this name as they come, by a function, async or plain, that may make durable calls."""
        messaging.check_name(name, "signal")

        def register(function: F) -> F:
            self._handlers.on_signal(name, function)
            return function

        return register

    def handlers_finished(self) -> "asyncio.Future[None]":
        """Wait until no handler of a signal or an update is at work, and no signal that was received waits for one.

        It takes no place in the history. Await it before the workflow returns or continues as new.
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
        """Begin another workflow, and return the future of its result; if it fails, `ChildWorkflowFailed`.

        It runs on *queue*, else on that of its definition, else on the queue of this workflow. When this workflow ends, *on_parent_close* says what becomes
        of it: ``"cancel"`` (the default), ``"terminate"`` or ``"abandon"``. A *deferred* one waits until somebody begins
        it by `Handle.begin`. A *detached* one is on its own: awaiting it waits for its start only, and gives None.
        """
        refuse_options("ctx.workflow", workflow, options.keys() - ChildOptions.__dataclass_fields__.keys())
        return begin(self._recorder, workflow_of(workflow), args, ChildOptions(**options), self._step)

    def saga(self) -> Saga:
        """Return a saga: ``async with ctx.saga() as saga: await saga.step(book, trip, undo=cancel)``.

        Should the block fail or be cancelled, what its steps did is taken back, the last first.
        """
        return Saga(self._recorder, self._step)

    def continue_as_new(self, *args: Any, signals: Literal["carry", "drop"] = "carry") -> NoReturn:
        """End this execution and begin the next with these arguments and an empty history; what follows is not run.

        Signals that were not taken are carried over, unless they are to be dropped.
        """
        if signals not in ("carry", "drop"):
            raise ValueError(f"ctx.continue_as_new: signals must be 'carry' or 'drop', got {signals!r}")
        recorder = self._recorder
        recorder.check_allowed("continue_as_new")
        what = f"arguments of workflow {recorder.started.name!r}"
        written = events.NULL
        if not recorder.mode.rehearsing:
            written = check_size(recorder.settings.max_payload, recorder.workflow.encode(args), what)
        raise recorder.verdict.decide(Continuation(args, signals, written))

    def v(self, version: int) -> "Versioned":
        """Return the same calls with a version, which puts them before older ones in an open run's history.

        ``ctx.v(2).activity(...)`` for one call; ``with ctx.v(2):`` for every call, task and timer inside.
        """
        return Versioned(self, version)

    @property
    def removed(self) -> "Removed":
        """Calls that were removed from the code, by what they were: ``await ctx.removed.activity("old")``."""
        return Removed(self._recorder, self._step)

    async def check_version(self, version: int, name: str | None = None) -> int:
        """Return which version of the code this run belongs to: *version* from here on, less for older runs."""
        if not is_whole(version, 1):
            raise ValueError(f"check_version: version must be a whole number, at least 1, got {version!r}")
        if name is not None and (not isinstance(name, str) or not name):
            raise ValueError(f"check_version: name must be a non-empty string, got {name!r}")
        return self._recorder.check_version(version, name)

    @property
    def _plain(self) -> "Context":
        """The context without a version, for a strand of its own, which begins with 1 again."""
        return self

    def race(self, *awaitables: Awaitable[T]) -> Durable[tuple[int, T]]:
        """Wait for the first to settle and return ``(index, value)``; a failed winner raises, losers are cancelled.

        Who won is written down, so that no later change of the code can decide it differently.
        """
        return run_race(self._recorder, awaitables, self._step)

    def until(self, predicate: Callable[[], bool]) -> asyncio.Future[None]:
        """Wait until *predicate* over the workflow's own variables holds."""
        if not callable(predicate) or asyncio.iscoroutinefunction(predicate):
            raise DefinitionError(
                f"ctx.until: {predicate!r} is no plain function without arguments, as in ctx.until(lambda: total > 3)"
            )
        here = copy_context()

        def holds() -> bool:
            return self._recorder.without_calls("the predicate of ctx.until", lambda: here.run(predicate))

        return self._recorder.loop.add_condition(holds)

    def now(self) -> datetime:
        """Return the workflow's time, in UTC: the moment of the entry that is being delivered."""
        mode = self._recorder.mode
        if isinstance(mode, Rehearsing) and mode.unknown is not None:
            return cast("datetime", mode.unknown)  # a rehearsal cannot know when it would be
        return datetime.fromtimestamp(self._recorder.now / 1000, UTC)

    @property
    def random(self) -> Random:
        """Random numbers that come out the same on replay, each strand's its own."""
        return self._recorder.scope().random

    def uuid4(self) -> UUID:
        """Return a random UUID that comes out the same on replay."""
        return UUID(int=self._recorder.scope().ids.getrandbits(128), version=4)

    @property
    def info(self) -> WorkflowInfo:
        """Who this execution is, and how far it has come."""
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
        self.logger = context.logger
        self._step = version
        self._context = context._plain

    def __enter__(self) -> None:
        """Give the version to every call, task and timer that this strand makes inside."""
        assert self._step is not None
        ambient.set((self._recorder.scope(), self._step, ambient.get(None)))

    def __exit__(self, *_: object) -> None:
        """Calls have the version again that they had before."""
        # Not by a token, which would be kept here: several strands may be inside at once.
        inside = ambient.get(None)
        ambient.set(None if inside is None else inside[2])

    @property
    def _plain(self) -> Context:
        return self._context


class _ReplaySilent(logging.LoggerAdapter[logging.Logger]):
    """Says nothing while the past is being replayed."""

    def __init__(self, recorder: Recorder) -> None:
        started = recorder.started
        super().__init__(logging.getLogger(f"resurgam.workflow.{started.name}"), {"entity_id": started.entity_id})
        self._recorder = recorder

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 -- the name is logging's
        return not self._recorder.mode.replaying and super().isEnabledFor(level)

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        with guarded(on=False):  # a handler may well open a socket or start a thread
            super().log(level, msg, *args, **kwargs)

    def process(self, msg: object, kwargs: MutableMapping[str, Any]) -> tuple[object, MutableMapping[str, Any]]:
        return f"[{(self.extra or {}).get('entity_id')}] {msg}", kwargs


def _check_key(key: object) -> None:
    if not isinstance(key, str) or not key:
        raise TypeError(f"state key must be a non-empty string, got {key!r}")


def _epoch_ms(moment: datetime) -> int:
    if not isinstance(moment, datetime):
        raise TypeError(f"sleep_until({moment!r}): give an aware datetime, or use ctx.sleep for a length of time")
    if moment.tzinfo is None:
        raise ValueError(f"sleep_until({moment.isoformat()}): no time zone; use an aware datetime")
    return round(moment.timestamp() * 1000)
