"""What workflow code may call. Each verb makes a wish and hands it to the `Recorder`; nothing is decided here."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping
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
from resurgam.core.retry import Duration, is_whole, milliseconds
from resurgam.runtime.definition import Activity, ActivityOptions
from resurgam.runtime.fanout import FanOut, Key
from resurgam.runtime.futures import Durable
from resurgam.runtime.guard import guarded
from resurgam.runtime.info import WorkflowInfo
from resurgam.runtime.looping import Break, Continue, Looping, check_body, check_bounds, state_codec
from resurgam.runtime.operation import Operation
from resurgam.runtime.recorder import ANY, Race, Recorder
from resurgam.runtime.removed import Removed
from resurgam.runtime.scope import Scope, ambient, current
from resurgam.runtime.signature import result_codec

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_OPTIONS = frozenset({"queue", "retry", "timeout"})


class Context:
    """The door from a workflow's code to everything durable.

    Durable calls are plain functions that return a future: they take their place in the history when they are called,
    not when they are awaited. `set`, `get`, `clear`, `now`, `random`, `uuid4`, `logger` and `info` return plain values.
    """

    _step: int | None = None
    """What ``ctx.v`` was given."""

    def __init__(self, recorder: Recorder, started: events.WorkflowStarted) -> None:
        self._recorder = recorder
        self._started = started
        self.logger: logging.LoggerAdapter[logging.Logger] = _ReplaySilent(recorder, started)

    def activity(self, activity: Activity[P, R] | str, /, *args: P.args, **kwargs: P.kwargs) -> Durable[R]:
        """Run an activity and return the future of its result; if it fails for good, `ActivityFailed`."""
        return self._schedule(_activity(activity, kwargs), args, kwargs)

    def _schedule(
        self, wanted: Activity[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], key: str | None = None
    ) -> Durable[Any]:
        queue = wanted.settings.queue or self._started.queue
        if self._recorder.rehearsing:
            return self._recorder.call(events.ActivityScheduled, wanted.name, step=self._step, key=key, queue=queue)
        written = ANY.encode(args, wanted.name) if wanted.signature is None else wanted.signature.encode(args, kwargs)
        future = self._recorder.call(
            events.ActivityScheduled,
            wanted.name,
            wanted.result,
            step=self._step,
            key=key,
            queue=queue,
            input=written,
            digest=_digest(written),
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
        future = self._recorder.call(events.OperationStarted, label, result, step=self._step)
        command = future.command
        if command.seq in self._recorder.log.state.open:
            self._recorder.operations[command.seq] = Operation(command.seq, label, function, args, result)
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
        future = self._recorder.call(
            events.ListenStarted, label, codec_for(type), step=self._step, names=names, deadline=deadline
        )
        self._recorder.listeners[future.command.seq] = names
        return future

    def set(self, key: str, value: object) -> None:
        """Keep a value in the workflow's durable state, where it can be read from outside too."""
        _check_key(key)
        written = self._recorder.write(ANY, value, f"state {key!r}")
        digest = None if self._recorder.rehearsing else _digest(written)
        command = self._recorder.issue(events.StateSet, key, step=self._step, value=written, digest=digest)
        self._recorder.change(key, command, written)

    def clear(self, key: str) -> None:
        """Drop a value from the workflow's durable state."""
        _check_key(key)
        self._recorder.change(key, self._recorder.issue(events.StateCleared, key, step=self._step))

    def get(self, key: str, default: T | None = None) -> Any | T:
        """Return a value of the workflow's durable state, as plain JSON types.

        Beside a loop that forgets, what was read is written down: what the loop had set by then may be forgotten.
        """
        recorder = self._recorder
        written = recorder.variables.get(key)
        if recorder.loops and recorder.is_beside_a_loop():
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
        return self._recorder.loop.strand(function(self._plain, *args), scope, str(scope.location))

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
                f"ctx.map: key is {key!r}; it is a function of an item, as in key=lambda item: item.id"
            )
        scope = self._recorder.branch(step=self._step, matching="keyed")
        plain = self._plain

        def begin(item: Any, key: str) -> "asyncio.Future[Any]":
            if isinstance(function, Activity):
                return plain._schedule(_activity(function, {}), (item,), {}, key)
            below = self._recorder.branch(key=key)
            return self._recorder.loop.strand(function(plain, item), below, str(below.location))

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
        if forget_every is not None:
            check_body(body)
        recorder = self._recorder
        future = recorder.call(
            events.LoopStarted,
            step=self._step,
            state=recorder.write(state_codec(body), state, "the state of a loop"),
            forget_every=forget_every,
            keep_forgotten=keep_forgotten,
        )
        looping = Looping(recorder, self._plain, future, body)
        recorder.loops[future.command.seq] = looping
        scope = recorder.scope_below(looping.command)
        return recorder.loop.strand(looping.run(), scope, str(scope.location))

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
            raise ValueError(f"check_version({version!r}): a version is a whole number from 1")
        if name is not None and (not isinstance(name, str) or not name):
            raise ValueError(f"check_version: its name is {name!r}; it is a string that is not empty")
        return self._recorder.check_version(version, name)

    @property
    def _plain(self) -> "Context":
        """The context without a version, for a strand of its own, which begins with 1 again."""
        return self

    def race(self, *awaitables: Awaitable[T]) -> Durable[tuple[int, T]]:
        """Wait for the first to settle and return ``(index, value)``; a failed winner raises, losers are cancelled.

        Who won is written down, so that no later change of the code can decide it differently.
        """
        if not awaitables:
            raise ValueError("ctx.race needs at least one competitor; a race of nobody would never end")
        try:
            future = self._recorder.call(events.RaceStarted, step=self._step, size=len(awaitables))
        except BaseException:
            for coroutine in filter(asyncio.iscoroutine, awaitables):
                coroutine.close()  # else asyncio complains that it was never awaited
            raise
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
        if self._recorder.unknown is not None:
            return cast("datetime", self._recorder.unknown)  # a rehearsal cannot know when it would be
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


class Versioned(Context):
    """A context whose calls have a version."""

    def __init__(self, context: Context, version: int) -> None:
        if not is_whole(version, 1):
            raise ValueError(f"ctx.v({version!r}): a version is a whole number from 1")
        self._recorder = context._recorder
        self._started = context._started
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
