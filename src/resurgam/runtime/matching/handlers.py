"""The handlers that running workflow code has registered, for queries, updates and signals.

A query is answered from the workflow's variables and records nothing. A signal or an update that meets its handler is
an entry of the history, and starts a task with a scope of its own; the steps of the k-th are located below ``{0, k}``.
"""

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterable
from contextvars import copy_context
from functools import cached_property
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.codec import Codec, check_size
from resurgam.core.errors import DefinitionError, HistoryDiverged, NotDeterministic, NotFound, SerializationError
from resurgam.core.failure import capture, in_user_code
from resurgam.core.location import Location
from resurgam.runtime.definitions.signature import Signature, defined_at
from resurgam.runtime.loop.closures import check_handler
from resurgam.runtime.loop.interrupts import reraise_ctrl_c
from resurgam.runtime.loop.scope import current
from resurgam.runtime.matching.forgetting import HANDLERS
from resurgam.runtime.matching.open_locations import open_locations
from resurgam.runtime.matching.recorder import Recorder
from resurgam.runtime.matching.signal_schemas import SignalSchemas

T = TypeVar("T")


class Handler(msgspec.Struct, frozen=True):
    """A function that the workflow registered for a name, and the validator of its arguments."""

    function: Callable[..., Any]
    signature: Signature
    validator: Callable[..., object] | None = None
    queue: "HandlerQueue | None" = None


class HandlerQueue:
    """Run the handlers of one update one at a time, in the order in which they started."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._last: int | None = None
        # The handler that each one waited for.
        self._behind: dict[int, int] = {}

    async def run(self, number: int, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Call a handler when those that started before it have ended."""
        if self._last is not None:
            self._behind[number] = self._last
        self._last = number
        try:
            async with self._lock:
                return await call()
        finally:
            self._last = None if self._last == number else self._last

    def needed_by(self, at_work: set[int]) -> set[int]:
        """Return the handlers without which a replay would run those at work too early."""
        needed = set(at_work)
        # The later of two numbers is behind the earlier one.
        for number in sorted(self._behind, reverse=True):
            if number in needed:
                needed.add(self._behind[number])
        self._behind = {number: before for number, before in self._behind.items() if number in needed}
        return needed


class Finished(msgspec.Struct, frozen=True):
    """The outcome of the handler of an update."""

    update: events.UpdateAccepted
    result: Raw | None = None
    failure: events.Failure | None = None


class Handlers:
    """The handlers of one execution, and the outcomes of those that have ended."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._queries: dict[str, Handler] = {}
        self.updates: dict[str, Handler] = {}
        self.signals: dict[str, Handler] = {}
        self.finished: tuple[Finished, ...] = ()
        self._queues: dict[str, HandlerQueue] = {}
        # The numbers of the handlers whose functions have not returned.
        self._running: dict[int, None] = {}
        # The exception of a signal's handler: it ends the workflow, as if the workflow's own function had raised it.
        self.failure: BaseException | None = None
        # Whether there are handlers of signals or updates; a plain attribute, since every step reads it.
        self.any = False
        # Recorded entries whose handler is not registered yet, because an edit of the code has delayed that.
        self._early: dict[tuple[str, str], list[events.Event]] = {}
        self._early_signals: dict[int, events.SignalReceived] = {}

    @cached_property
    def schemas(self) -> SignalSchemas:
        """The schemas of the signals that the code accepts."""
        return SignalSchemas(self._recorder.settings.signal_schemas)

    # Registering.

    def on_query(self, name: str, function: Callable[..., Any]) -> None:
        """Register the handler of a query."""
        self._check_place("query", name)
        self._queries[name] = _handler(function, "query", name)

    def on_update(
        self,
        name: str,
        function: Callable[..., Any],
        validator: Callable[..., object] | None,
        *,
        one_at_a_time: bool = False,
    ) -> None:
        """Register the handler of an update, which starts unless the validator raises."""
        self._check_place("update", name)
        if validator is not None and not callable(validator):
            raise DefinitionError(f"update {name!r}: its validator must be a function, got {validator!r}")
        if inspect.iscoroutinefunction(validator):
            # It would be called and not awaited, and so accept everything.
            raise DefinitionError(
                f"update {name!r}: its validator must be a plain function, got an async one; write def"
            )
        handler = self._check(_handler(function, "update", name))
        self.any = True
        self._recorder.course.leave()
        queue = self._queues.setdefault(name, HandlerQueue()) if one_at_a_time else None
        self.updates[name] = Handler(handler.function, handler.signature, validator, queue)
        results, result = self._recorder.workflow.update_results, handler.signature.result
        results[name] = result if results.get(name, result) is result else None
        self._come_to("update", name)

    def on_signal(self, name: str, function: Callable[..., Any]) -> None:
        """Register the handler of a signal, which starts for each one that arrives, and for those in the mailbox."""
        self._check_place("signal", name)
        self.any = True
        self._recorder.course.leave()
        handler = self.signals[name] = self._check(_handler(function, "signal", name))
        self.schemas.declare((name,), handler.signature.first)
        self._come_to("signal", name)

    def check_all(self) -> None:
        """Check the handlers when a loop that forgets starts: what they changed beside the durable state would be lost."""
        for handler in (*self.updates.values(), *self.signals.values()):
            check_handler(handler.function, handler.signature.label)

    def _check_place(self, kind: str, name: str) -> None:
        """Refuse to register a handler in the body of a loop that forgets, which replay does not run again."""
        location = self._recorder.scope().location
        if self._recorder.pending.is_inside_forgetting_loop(location):
            raise NotDeterministic(
                f"the handler of {kind} {name!r} is registered in the body of a loop that forgets, whose iterations are not "
                "run again; register it before the loop"
            )

    def _check(self, handler: Handler) -> Handler:
        if any(self._recorder.pending.forgetting_loops()):
            check_handler(handler.function, handler.signature.label)
        return handler

    def at_work(self) -> set[int]:
        """Return the numbers of the handlers that have not ended."""
        locations = (location.coordinates for location in open_locations(self._recorder) if location.coordinates)
        at_work = {parts[1][0] for parts in locations if parts[0] == HANDLERS}
        return at_work | {update.scope for update in self._recorder.log.state.updates.values()}

    def unforgettable(self) -> set[int]:
        """Return the numbers of the handlers at work, and of those that they waited for."""
        at_work = self.at_work()
        return at_work.union(*(queue.needed_by(at_work) for queue in self._queues.values()))

    def all_finished(self) -> "asyncio.Future[None]":
        """Return a future that settles when no handler is at work and no signal waits for one."""
        location = self._recorder.scope().location
        if location.coordinates and location.coordinates[0] == HANDLERS:
            raise DefinitionError(
                f"ctx.handlers_finished() is called by the handler at {location}, which would wait for itself; call it in the "
                "workflow's own function"
            )
        return self._recorder.loop.add_condition(self._is_idle)

    def _is_idle(self) -> bool:
        return not (self._running or self._early or self._recorder.mailbox.oldest(tuple(self.signals)))

    # Answering.

    def query(self, name: str, written: Raw) -> tuple[Raw, Codec[Any]]:
        """Return the answer of a query's handler, and the codec of its annotation; its exceptions pass."""
        handler = self._queries.get(name)
        if handler is None:
            raise self._unknown("query", name, self._queries)
        args, kwargs = handler.signature.decode(written)
        try:
            with self._recorder.loop:
                answer = self._quietly(f"the handler of query {name!r}", lambda: handler.function(*args, **kwargs))
        except (SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
            reraise_ctrl_c(error)
            # It must end neither the client nor the worker.
            raise RuntimeError(f"the handler of query {name!r} raised {error!r}") from error
        if inspect.isawaitable(answer):
            if inspect.iscoroutine(answer):
                answer.close()  # else Python warns that it was never awaited
            raise DefinitionError(
                f"the handler of query {name!r} must be a plain function, got an async one; write def"
            )
        what = f"answer to query {name!r}"
        codec = handler.signature.result
        return check_size(self._recorder.settings.max_payload, codec.check(answer, what), what), codec

    def refuses(self, update: events.UpdateAccepted) -> events.Failure | None:
        """Decode the arguments of an update and call its validator; return the failure if it is refused."""
        handler = self.updates[update.name]
        try:
            args, kwargs = handler.signature.decode(update.input)
            if handler.validator is not None:
                validator = handler.validator
                self._quietly(f"the validator of update {update.name!r}", lambda: validator(*args, **kwargs))
        except _WHATEVER as error:
            reraise_ctrl_c(error)
            return capture(in_user_code(error), limit=self._recorder.settings.max_payload)
        return None

    def begin_update(self, entry: events.UpdateAccepted) -> None:
        """Start the handler of an update in a task of its own."""
        handler = self.updates.get(entry.name)
        if handler is None:
            self._delay("update", entry.name, entry)
            return
        try:
            args, kwargs = handler.signature.decode(entry.input)
        except (SerializationError, DefinitionError) as error:
            # They fitted when it was accepted, so the code has changed.
            self._diverge(entry, "type", str(error), f"the arguments of update {entry.name!r}")
            return
        self._strand(entry.scope, self._update(handler, entry, args, kwargs))

    async def _update(self, handler: Handler, entry: events.UpdateAccepted, args: Any, kwargs: Any) -> None:
        what = f"result of update {entry.name!r}"
        try:
            if handler.queue is None:
                value = await _called(handler.function, args, kwargs)
            else:
                value = await handler.queue.run(entry.scope, lambda: _called(handler.function, args, kwargs))
            written = check_size(self._recorder.settings.max_payload, handler.signature.result.check(value, what), what)
        except _WHATEVER as error:
            reraise_ctrl_c(error)
            failure = capture(in_user_code(error), limit=self._recorder.settings.max_payload)
            self.finished += (Finished(entry, failure=failure),)
        else:
            self.finished += (Finished(entry, written),)

    def begin_signal(self, entry: events.SignalHandled, signal: events.SignalReceived) -> None:
        """Start the handler of a signal in a task of its own."""
        handler = self.signals.get(signal.name)
        if handler is None:
            self._early_signals[entry.seq] = signal
            self._delay("signal", signal.name, entry)
            return
        self._strand(entry.scope, self._signal(handler, signal))

    async def _signal(self, handler: Handler, signal: events.SignalReceived) -> None:
        try:
            args, kwargs = _given(handler.signature, signal)
        except (SerializationError, DefinitionError) as error:
            # The sender's mistake: it must not end the workflow, and is the same on every replay.
            self._recorder.warn(f"signal {signal.name!r} ({signal.id}) is dropped: {error}")
            return
        try:
            await _called(handler.function, args, kwargs)
        except _WHATEVER as error:
            reraise_ctrl_c(error)
            self.failure = self.failure or error

    # Entries whose handler the edited code registers later.

    def _delay(self, kind: str, name: str, entry: events.Event) -> None:
        """Keep an entry until its handler is registered, if edited code may still do so."""
        self._early.setdefault((kind, name), []).append(entry)
        if not self._recorder.early.may_hold(entry.seq):
            self.check_early()

    def _come_to(self, kind: str, name: str) -> None:
        for entry in self._early.pop((kind, name), ()):
            self._recorder.early.add_overdue(entry)

    @property
    def awaited(self) -> bool:
        """Whether an entry waits for its handler to be registered."""
        return bool(self._early)

    def begin_early(self, entry: events.Event) -> None:
        """Start the handler of an entry that was delayed."""
        if isinstance(entry, events.SignalHandled):
            self.begin_signal(entry, self._early_signals.pop(entry.seq))
        elif isinstance(entry, events.UpdateAccepted):
            self.begin_update(entry)

    def check_early(self) -> None:
        """Diverge if the code has no handler for an entry that met one."""
        for (kind, name), entries in self._early.items():
            known = self.signals if kind == "signal" else self.updates
            self._diverge(entries[0], "name", ", ".join(sorted(known)) or "none", f"{kind} {name!r}")
            return

    def _strand(self, number: int, coroutine: Any) -> None:
        scope = self._recorder.scope_at(Location(HANDLERS, (number,)))
        self._running[number] = None
        task = self._recorder.loop.start_task(coroutine, scope, str(scope.location))
        task.add_done_callback(lambda _: self._running.pop(number, None))

    def _quietly(self, what: str, function: Callable[[], Any]) -> Any:
        """Call a function that may read the durable state, but make no durable calls."""
        inside = copy_context()
        inside.run(current.set, self._recorder.root)
        with self._recorder.state.unrecorded_reads():
            return self._recorder.verdict.without_calls(what, lambda: inside.run(function))

    def _diverge(self, entry: events.Event, field: str, code: str, history: str) -> None:
        error = HistoryDiverged(
            Location(HANDLERS), "the handler", field, code_value=code, history_value=history, event_seq=entry.seq
        )
        self._recorder.verdict.decide(error)

    def unknown_update(self, name: str) -> NotFound:
        """Return the error for the sender of an update that has no handler."""
        return self._unknown("update", name, self.updates)

    def _unknown(self, kind: str, name: str, known: Iterable[str]) -> NotFound:
        others = ", ".join(map(repr, sorted(known))) or "none"
        workflow = f"workflow {self._recorder.started.entity_id!r} ({self._recorder.started.name})"
        return NotFound(f"{workflow} has no handler for {kind} {name!r}; it has {others}")


_WHATEVER: Final = (Exception, asyncio.CancelledError, SystemExit, KeyboardInterrupt)
"""Exceptions of a handler that go to the sender of the update or signal, even ``sys.exit()``: they must not end the worker."""


async def _called(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    value = function(*args, **kwargs)
    return await value if inspect.isawaitable(value) else value


def _given(signature: Signature, signal: events.SignalReceived) -> Any:
    """Return the arguments of a handler: the signal's value, or none if it takes none."""
    return signature.decode(Raw(b"[" + bytes(signal.value) + b"]") if signature.parameters else Raw(b"[]"))


def _handler(function: Callable[..., Any], kind: str, name: object) -> Handler:
    if not isinstance(name, str) or not name:
        raise ValueError(f"the name of a {kind} must be a non-empty string, got {name!r}")
    if not inspect.isfunction(function) and not inspect.ismethod(function):
        raise DefinitionError(f"the handler of {kind} {name!r} must be a function, got {function!r}")
    signature = Signature(function, f"{kind} {name!r}")
    try:
        signature.check()
        if kind == "signal" and signature.parameters:
            signature.check_positional(1)
    except (SerializationError, DefinitionError) as error:
        raise DefinitionError(f"{defined_at(function)}: {error}") from error
    return Handler(function, signature)
