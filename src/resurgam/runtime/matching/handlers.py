"""What a workflow's code answers to while it runs: queries, updates, and signals that are handled as they come.

A handler is registered by the running workflow. A query is answered from the workflow's variables and leaves no trace. A
signal or an update that meets its handler is an entry of the history, and begins a strand of its own, whose steps stand
below ``{0, k}`` for the k-th of them.
"""

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterable
from contextvars import copy_context
from dataclasses import dataclass
from heapq import heappush
from typing import TYPE_CHECKING, Any, Final, TypeVar

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
from resurgam.runtime.matching.signal_schemas import SignalSchemas

if TYPE_CHECKING:
    from resurgam.runtime.matching.recorder import Recorder

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Handler:
    """A function that the workflow registered for a name, and what refuses its arguments before it begins."""

    function: Callable[..., Any]
    signature: Signature
    validator: Callable[..., object] | None = None
    turns: "Turns | None" = None


class Turns:
    """Lets the handlers of one update run one after the other, in the order in which they were begun."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._last: int | None = None
        # Which handler each one had to wait for.
        self._behind: dict[int, int] = {}

    async def run(self, number: int, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Call a handler when those that were begun before have ended."""
        if self._last is not None:
            self._behind[number] = self._last
        self._last = number
        try:
            async with self._lock:
                return await call()
        finally:
            self._last = None if self._last == number else self._last

    def needed_by(self, at_work: set[int]) -> set[int]:
        """Return the handlers without which those at work would be replayed before their turn."""
        needed = set(at_work)
        # The later of two numbers is behind the earlier one.
        for number in sorted(self._behind, reverse=True):
            if number in needed:
                needed.add(self._behind[number])
        self._behind = {number: before for number, before in self._behind.items() if number in needed}
        return needed


@dataclass(frozen=True, slots=True)
class Finished:
    """What the handler of an update came to."""

    update: events.UpdateAccepted
    result: Raw | None = None
    failure: events.Failure | None = None


class Handlers:
    """The handlers of one execution, and what they have come to."""

    def __init__(self, recorder: "Recorder") -> None:
        self._recorder = recorder
        self._queries: dict[str, Handler] = {}
        self.updates: dict[str, Handler] = {}
        self.signals: dict[str, Handler] = {}
        self.accepting = SignalSchemas(recorder.settings.signal_schemas)
        self.finished: list[Finished] = []
        self._turns: dict[str, Turns] = {}
        # The numbers of the handlers whose functions have not returned.
        self._running: set[int] = set()
        # What left the handler of a signal: it ends the workflow, as if its own function had raised it.
        self.failure: BaseException | None = None
        # Whether anything begins a strand when it comes; a plain attribute, since every step asks.
        self.any = False
        # Entries that an edit of the code has put off: the handler that they had met is not registered yet.
        self._early: dict[tuple[str, str], list[events.Event]] = {}
        self._early_signals: dict[int, events.SignalReceived] = {}

    # Registering.

    def on_query(self, name: str, function: Callable[..., Any]) -> None:
        """Answer queries of this name."""
        self._place("query", name)
        self._queries[name] = _handler(function, "query", name)

    def on_update(
        self,
        name: str,
        function: Callable[..., Any],
        validator: Callable[..., object] | None,
        *,
        one_at_a_time: bool = False,
    ) -> None:
        """Begin with updates of this name, unless the validator raises."""
        self._place("update", name)
        if validator is not None and not callable(validator):
            raise DefinitionError(f"update {name!r}: its validator is {validator!r}; it is a function")
        if inspect.iscoroutinefunction(validator):
            # It would be called and not awaited, and so refuse nothing.
            raise DefinitionError(
                f"update {name!r}: its validator is async; write def: it may look, and waits for nothing"
            )
        handler = self._check(_handler(function, "update", name))
        self.any = True
        turns = self._turns.setdefault(name, Turns()) if one_at_a_time else None
        self.updates[name] = Handler(handler.function, handler.signature, validator, turns)
        results, result = self._recorder.workflow.update_results, handler.signature.result
        results[name] = result if results.get(name, result) is result else None
        self._come_to("update", name)

    def on_signal(self, name: str, function: Callable[..., Any]) -> None:
        """Begin with signals of this name as they come, and with those that wait already."""
        self._place("signal", name)
        self.any = True
        handler = self.signals[name] = self._check(_handler(function, "signal", name))
        self.accepting.declare((name,), handler.signature.first)
        self._come_to("signal", name)

    def check_all(self) -> None:
        """A loop that forgets begins: what handlers changed beside the durable state would be forgotten with it."""
        for handler in (*self.updates.values(), *self.signals.values()):
            check_handler(handler.function, handler.signature.label)

    def _place(self, kind: str, name: str) -> None:
        """Refuse to register a handler where the code is not run again: in the body of a loop that forgets."""
        place = self._recorder.scope().location
        loops = (looping.command for looping in self._recorder.loops.values())
        if any(loop.forget_every is not None and loop.location.contains(place) for loop in loops):
            raise NotDeterministic(
                f"the handler of {kind} {name!r} is registered in the body of a loop that forgets, whose iterations are not "
                "run again; register it before the loop"
            )

    def _check(self, handler: Handler) -> Handler:
        if any(looping.command.forget_every is not None for looping in self._recorder.loops.values()):
            check_handler(handler.function, handler.signature.label)
        return handler

    def at_work(self) -> set[int]:
        """Return the numbers of the handlers that have not come to their end."""
        places = (place.coordinates for place in self._recorder.places_at_work() if place.coordinates)
        at_work = {parts[1][0] for parts in places if parts[0] == HANDLERS}
        return at_work | {update.scope for update in self._recorder.log.state.updates.values()}

    def unforgettable(self) -> set[int]:
        """Return the numbers of the handlers at work, and of those that they had to wait for."""
        at_work = self.at_work()
        return at_work.union(*(turns.needed_by(at_work) for turns in self._turns.values()))

    def all_finished(self) -> "asyncio.Future[None]":
        """Return a future that is settled once no handler is at work and no signal waits for one."""
        place = self._recorder.scope().location
        if place.coordinates and place.coordinates[0] == HANDLERS:
            raise DefinitionError(
                f"ctx.handlers_finished() is called by the handler at {place}, which would wait for itself; call it in the "
                "workflow's own function"
            )
        return self._recorder.loop.add_condition(self._is_idle)

    def _is_idle(self) -> bool:
        return not (self._running or self._early or self._recorder.mailbox.oldest(tuple(self.signals)))

    # Answering.

    def query(self, name: str, written: Raw) -> tuple[Raw, Codec[Any]]:
        """Return what the handler of a query answers, and the codec of its annotation; what it raises is raised."""
        handler = self._queries.get(name)
        if handler is None:
            raise self._unknown("query", name, self._queries)
        args, kwargs = handler.signature.decode(written)
        try:
            with self._recorder.loop:
                answer = self._quietly(f"the handler of query {name!r}", lambda: handler.function(*args, **kwargs))
        except (SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
            reraise_ctrl_c(error)
            # Whoever asks must not be ended by it, nor whoever answers.
            raise RuntimeError(f"the handler of query {name!r} raised {error!r}") from error
        if inspect.isawaitable(answer):
            if inspect.iscoroutine(answer):
                answer.close()  # else Python complains that it was never awaited
            raise DefinitionError(f"the handler of query {name!r} is async; write def: a query waits for nothing")
        what = f"answer to query {name!r}"
        codec = handler.signature.result
        return check_size(self._recorder.settings.max_payload, codec.check(answer, what), what), codec

    def refuses(self, update: events.UpdateAccepted) -> events.Failure | None:
        """Ask the validator of an update, and try its arguments: what speaks against it, if anything does."""
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
        """Begin the handler of an update in a strand of its own."""
        handler = self.updates.get(entry.name)
        if handler is None:
            self._put_off("update", entry.name, entry)
            return
        try:
            args, kwargs = handler.signature.decode(entry.input)
        except (SerializationError, DefinitionError) as error:
            # They fitted when it was accepted, so it is the code that has changed.
            self._diverge(entry, "type", str(error), f"the arguments of update {entry.name!r}")
            return
        self._strand(entry.scope, self._update(handler, entry, args, kwargs))

    async def _update(self, handler: Handler, entry: events.UpdateAccepted, args: Any, kwargs: Any) -> None:
        what = f"result of update {entry.name!r}"
        try:
            if handler.turns is None:
                value = await _called(handler.function, args, kwargs)
            else:
                value = await handler.turns.run(entry.scope, lambda: _called(handler.function, args, kwargs))
            written = check_size(self._recorder.settings.max_payload, handler.signature.result.check(value, what), what)
        except _WHATEVER as error:
            reraise_ctrl_c(error)
            failure = capture(in_user_code(error), limit=self._recorder.settings.max_payload)
            self.finished.append(Finished(entry, failure=failure))
        else:
            self.finished.append(Finished(entry, written))

    def begin_signal(self, entry: events.SignalHandled, signal: events.SignalReceived) -> None:
        """Begin the handler of a signal in a strand of its own."""
        handler = self.signals.get(signal.name)
        if handler is None:
            self._early_signals[entry.seq] = signal
            self._put_off("signal", signal.name, entry)
            return
        self._strand(entry.scope, self._signal(handler, signal))

    async def _signal(self, handler: Handler, signal: events.SignalReceived) -> None:
        try:
            args, kwargs = _given(handler.signature, signal)
        except (SerializationError, DefinitionError) as error:
            # The sender's mistake: it must not end the workflow, and is the same on every replay.
            self._recorder.complain(f"signal {signal.name!r} ({signal.id}) is dropped: {error}")
            return
        try:
            await _called(handler.function, args, kwargs)
        except _WHATEVER as error:  # nobody else would hear of it
            reraise_ctrl_c(error)
            self.failure = self.failure or error

    # Entries whose handler the code comes to later than it did.

    def _put_off(self, kind: str, name: str, entry: events.Event) -> None:
        """Keep an entry until its handler is registered, if code that was changed may still do so."""
        self._early.setdefault((kind, name), []).append(entry)
        if not self._recorder.is_put_off(entry.seq):
            self.check_early()

    def _come_to(self, kind: str, name: str) -> None:
        for entry in self._early.pop((kind, name), ()):
            heappush(self._recorder.early.overdue, (entry.seq, entry))

    def begin_early(self, entry: events.Event) -> None:
        """Begin with what had been put off."""
        if isinstance(entry, events.SignalHandled):
            self.begin_signal(entry, self._early_signals.pop(entry.seq))
        elif isinstance(entry, events.UpdateAccepted):
            self.begin_update(entry)

    def check_early(self) -> None:
        """Find that the code has no handler for something that one had begun with."""
        for (kind, name), entries in self._early.items():
            known = self.signals if kind == "signal" else self.updates
            self._diverge(entries[0], "name", ", ".join(sorted(known)) or "none", f"{kind} {name!r}")
            return

    def _strand(self, number: int, coroutine: Any) -> None:
        scope = self._recorder.scope_at(Location(HANDLERS, (number,)))
        self._running.add(number)
        strand = self._recorder.loop.start_task(coroutine, scope, str(scope.location))
        strand.add_done_callback(lambda _: self._running.discard(number))

    def _quietly(self, what: str, function: Callable[[], Any]) -> Any:
        """Call a function that may look, but ask for nothing."""
        inside = copy_context()
        inside.run(current.set, self._recorder.root)
        with self._recorder.looking():
            return self._recorder.without_wishes(what, lambda: inside.run(function))

    def _diverge(self, entry: events.Event, field: str, code: str, history: str) -> None:
        self._recorder.verdict = HistoryDiverged(
            Location(HANDLERS), "the handler", field, code_value=code, history_value=history, event_seq=entry.seq
        )

    def unknown_update(self, name: str) -> NotFound:
        """Return what the sender of an update without a handler is told."""
        return self._unknown("update", name, self.updates)

    def _unknown(self, kind: str, name: str, known: Iterable[str]) -> NotFound:
        others = ", ".join(map(repr, sorted(known))) or "none"
        workflow = f"workflow {self._recorder.started.entity_id!r} ({self._recorder.started.name})"
        return NotFound(f"{workflow} has no handler for {kind} {name!r}; it has {others}")


_WHATEVER: Final = (Exception, asyncio.CancelledError, SystemExit, KeyboardInterrupt)
"""What may leave a handler: it is for whoever sent the update or the signal, even ``sys.exit()``, and ends nobody else."""


async def _called(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    value = function(*args, **kwargs)
    return await value if inspect.isawaitable(value) else value


def _given(signature: Signature, signal: events.SignalReceived) -> Any:
    """Return the arguments of a handler: the signal's value, or none if it takes none."""
    return signature.decode(Raw(b"[" + bytes(signal.value) + b"]") if signature.parameters else Raw(b"[]"))


def _handler(function: Callable[..., Any], kind: str, name: object) -> Handler:
    if not isinstance(name, str) or not name:
        raise ValueError(f"the name of a {kind} is a string that is not empty; got {name!r}")
    if not inspect.isfunction(function) and not inspect.ismethod(function):
        raise DefinitionError(f"the handler of {kind} {name!r} is {function!r}; it is a function")
    signature = Signature(function, f"{kind} {name!r}")
    try:
        signature.check()
        if kind == "signal" and signature.parameters:
            signature.check_positional(1)
    except (SerializationError, DefinitionError) as error:
        raise DefinitionError(f"{defined_at(function)}: {error}") from error
    return Handler(function, signature)
