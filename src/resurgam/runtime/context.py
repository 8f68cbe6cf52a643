"""What workflow code may call. Each verb makes a wish and hands it to the `Recorder`; nothing is decided here."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from contextvars import copy_context
from datetime import UTC, datetime
from hashlib import blake2b
from random import Random
from typing import Any, ParamSpec, TypeVar, TypeVarTuple, cast, overload
from uuid import UUID

from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.codec import TypeForm, codec_for
from resurgam.core.errors import DefinitionError
from resurgam.core.outcome import ActivityRequest
from resurgam.core.retry import Duration, milliseconds
from resurgam.runtime.definition import Activity, ActivityOptions
from resurgam.runtime.futures import Durable
from resurgam.runtime.guard import guarded
from resurgam.runtime.info import WorkflowInfo
from resurgam.runtime.operation import Operation
from resurgam.runtime.recorder import ANY, Race, Recorder
from resurgam.runtime.scope import Scope, current
from resurgam.runtime.signature import result_codec

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_OPTIONS = frozenset({"queue", "retry", "timeout"})


class Context:
    """The door from a workflow's code to everything durable.

    Durable calls are plain functions that return a future: they take their place in the history when they are called,
    not when they are awaited. `set`, `get`, `clear`, `now`, `random`, `uuid4`, `logger` and `info` return plain values.
    """

    def __init__(self, recorder: Recorder, started: events.WorkflowStarted) -> None:
        self._recorder = recorder
        self._started = started
        self.logger: logging.LoggerAdapter[logging.Logger] = _ReplaySilent(recorder, started)

    def activity(self, activity: Activity[P, R] | str, /, *args: P.args, **kwargs: P.kwargs) -> Durable[R]:
        """Run an activity and return the future of its result; if it fails for good, `ActivityFailed`."""
        wanted = _activity(activity, kwargs)
        written = ANY.encode(args, wanted.name) if wanted.signature is None else wanted.signature.encode(args, kwargs)
        queue = wanted.settings.queue or self._started.queue
        future = self._recorder.call(
            events.ActivityScheduled, wanted.name, wanted.result, queue=queue, input=written, digest=_digest(written)
        )
        command = future.command
        if self._recorder.is_new(command):
            timeout = wanted.settings.timeout
            self._recorder.requests[command.seq] = ActivityRequest(
                ref=command.seq,
                name=wanted.name,
                queue=queue,
                input=written,
                entity_id=_entity_id(self._started.run_id, command),
                retry=wanted.rule,
                timeout=None if timeout is None else milliseconds(timeout),
                executor=wanted.settings.executor,
            )
        return future

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
        future = self._recorder.call(events.OperationStarted, label, result)
        command = future.command
        if command.seq in self._recorder.log.state.open:
            self._recorder.operations[command.seq] = Operation(command.seq, label, function, args, result)
        return future

    def sleep(self, duration: Duration) -> Durable[None]:
        """Wait this long, in seconds or as a timedelta, however often the process dies meanwhile."""
        return self._recorder.start_timer(milliseconds(duration) / 1000)

    def sleep_until(self, moment: datetime) -> Durable[None]:
        """Wait until a moment; one that is past is over at once."""
        return self._recorder.call(events.TimerStarted, deadline=_epoch_ms(moment))

    @overload
    def listen(self, name: str, /, *, type: type[T], timeout: Duration | None = None) -> Durable[T]: ...
    @overload
    def listen(self, name: str, /, *, type: TypeForm = Any, timeout: Duration | None = None) -> Durable[Any]: ...
    @overload
    def listen(
        self, name: str, other: str, /, *names: str, type: type[T], timeout: Duration | None = None
    ) -> Durable[tuple[str, T]]: ...
    @overload
    def listen(
        self, name: str, other: str, /, *names: str, type: TypeForm = Any, timeout: Duration | None = None
    ) -> Durable[tuple[str, Any]]: ...
    def listen(self, *names: str, type: TypeForm = Any, timeout: Duration | None = None) -> Durable[Any]:
        """Receive the next signal: one name gives its value, several give ``(name, value)``.

        Signals wait in order until somebody listens. After *timeout* it is `SignalTimeout`.
        """
        if not names or not all(isinstance(name, str) and name for name in names):
            raise ValueError(f"listen needs the names of the signals, as strings; got {names!r}")
        deadline = None if timeout is None else self._recorder.log.stamp() + max(0, milliseconds(timeout))
        label = ", ".join(names)
        future = self._recorder.call(events.ListenStarted, label, codec_for(type), names=names, deadline=deadline)
        self._recorder.listeners[future.command.seq] = names
        return future

    def set(self, key: str, value: object) -> None:
        """Keep a value in the workflow's durable state, where it can be read from outside too."""
        _check_key(key)
        written = ANY.encode(value, f"state {key!r}")
        self._recorder.issue(events.StateSet, key, value=written, digest=_digest(written))
        self._recorder.variables[key] = written

    def clear(self, key: str) -> None:
        """Drop a value from the workflow's durable state."""
        _check_key(key)
        self._recorder.issue(events.StateCleared, key)
        self._recorder.variables.pop(key, None)

    def get(self, key: str, default: T | None = None) -> Any | T:
        """Return a value of the workflow's durable state, as plain JSON types."""
        written = self._recorder.variables.get(key)
        return default if written is None else ANY.decode(written, f"state {key!r}")

    def branch(
        self,
        function: "Callable[[Context, *Ts], Coroutine[Any, Any, R]]",
        /,
        *args: *Ts,
        name: str | None = None,
    ) -> asyncio.Task[R]:
        """Run ``function(ctx, *args)`` as a strand of its own, whose steps stand below the branch."""
        scope = self._recorder.branch(name)
        return self._recorder.loop.strand(function(self, *args), scope, str(scope.location))

    def race(self, *awaitables: Awaitable[T]) -> Durable[tuple[int, T]]:
        """Wait for the first to settle and return ``(index, value)``; a failed winner raises, losers are cancelled.

        Who won is written down, so that no later change of the code can decide it differently.
        """
        if not awaitables:
            raise ValueError("ctx.race needs at least one competitor; a race of nobody would never end")
        future = self._recorder.call(events.RaceStarted, size=len(awaitables))
        scope = self._recorder.scope_below(future.command)
        race = Race([_competitor(awaitable, scope) for awaitable in awaitables])
        self._recorder.races[future.command.seq] = race
        self._recorder.close_scope(scope)
        for index, member in enumerate(race.members):
            member.add_done_callback(_arrival(race, index))
        future.add_done_callback(lambda _: _cancel_all(race.members))
        return future

    def until(self, predicate: Callable[[], bool]) -> asyncio.Future[None]:
        """Wait until *predicate* over the workflow's own variables holds."""
        here = copy_context()

        def holds() -> bool:
            return self._recorder.without_wishes("the predicate of ctx.until", lambda: here.run(predicate))

        return self._recorder.loop.add_condition(holds)

    def now(self) -> datetime:
        """Return the workflow's time, in UTC: the moment of the entry that is being delivered."""
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
        started = self._started
        return WorkflowInfo(
            name=started.name,
            entity_id=started.entity_id,
            execution_id=started.execution_id,
            run_id=started.run_id,
            tree_id=started.tree_id,
            generation=started.generation,
            attempt=started.attempt,
            queue=started.queue,
            history_length=self._recorder.position,
            is_replaying=self._recorder.replaying,
        )


class _ReplaySilent(logging.LoggerAdapter[logging.Logger]):
    """Says nothing while the past is being replayed."""

    def __init__(self, recorder: Recorder, started: events.WorkflowStarted) -> None:
        super().__init__(logging.getLogger(f"resurgam.workflow.{started.name}"), {"entity_id": started.entity_id})
        self._recorder = recorder

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 -- the name is logging's
        return not self._recorder.replaying and super().isEnabledFor(level)

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        with guarded(on=False):  # a handler may well open a socket or start a thread
            super().log(level, msg, *args, **kwargs)

    def process(self, msg: object, kwargs: MutableMapping[str, Any]) -> tuple[object, MutableMapping[str, Any]]:
        return f"[{(self.extra or {}).get('entity_id')}] {msg}", kwargs


def _activity(given: object, kwargs: dict[str, Any]) -> Activity[..., Any]:
    if isinstance(given, str):
        given = Activity(given, None, ActivityOptions())
    if not isinstance(given, Activity):
        raise DefinitionError(f"{given!r} is not an activity; decorate it with @activity, or give its name")
    parameters = set() if given.signature is None else given.signature.parameters
    misplaced = sorted(_OPTIONS & kwargs.keys() - parameters)
    if misplaced:
        option = misplaced[0]
        raise DefinitionError(
            f"activity {given.name!r} has no parameter {option!r}; for the option write "
            f"ctx.activity({given.name}.options({option}={kwargs[option]!r}), ...)"
        )
    if given.signature is None and kwargs:
        raise DefinitionError(f"activity {given.name!r} is known by name only; give its arguments by position")
    return given


def _check_key(key: object) -> None:
    if not isinstance(key, str) or not key:
        raise TypeError(f"the key of a state is {key!r}; it is a string that is not empty")


def _digest(written: Raw) -> str:
    return blake2b(bytes(written), digest_size=8).hexdigest()


def _entity_id(run_id: str, command: events.Command) -> str:
    """Return an id that is the same for every attempt, and safe in a header or a path."""
    return f"{run_id}/{str(command.location)[1:-1].replace(', ', '/')}"


def _epoch_ms(moment: datetime) -> int:
    if not isinstance(moment, datetime):
        raise TypeError(f"sleep_until({moment!r}): give an aware datetime, or use ctx.sleep for a length of time")
    if moment.tzinfo is None:
        raise ValueError(f"sleep_until({moment.isoformat()}): no time zone; use an aware datetime")
    return round(moment.timestamp() * 1000)


def _competitor(awaitable: Awaitable[Any], scope: Scope) -> asyncio.Future[Any]:
    if isinstance(awaitable, asyncio.Future):
        return awaitable
    inside = copy_context()
    inside.run(current.set, scope)
    return cast("asyncio.Future[Any]", inside.run(asyncio.ensure_future, awaitable))


def _arrival(race: Race, index: int) -> Callable[[asyncio.Future[Any]], None]:
    def settled(member: asyncio.Future[Any]) -> None:
        if not member.cancelled():
            member.exception()  # a loser's failure has been seen, as far as asyncio is concerned
        if race.winner is None:
            race.winner = index

    return settled


def _cancel_all(members: list[asyncio.Future[Any]]) -> None:
    for member in members:
        member.cancel()
