"""The verbs of a context by which a workflow talks: signals, promises, messages, queries and updates."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from resurgam.core import event as events
from resurgam.core.codec import TypeForm, codec_for
from resurgam.core.errors import AlreadyExists, DefinitionError
from resurgam.core.location import Location
from resurgam.core.outcome import OpenPromise
from resurgam.core.retry import Duration, is_whole, milliseconds
from resurgam.core.schema import schema_of
from resurgam.runtime.context import outbound
from resurgam.runtime.ids import promise_id
from resurgam.runtime.loop.futures import Batch, Durable
from resurgam.runtime.matching.recorder import Recorder

if TYPE_CHECKING:
    from typing_extensions import TypeForm as Form

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Promise(Durable[T]):
    """What ``ctx.promise`` returns: await it for the value that somebody outside gives."""

    @property
    def promise_id(self) -> str:
        """What whoever settles it must know."""
        return self.command.promise_id if isinstance(self.command, events.PromiseCreated) else ""


class Messaging:
    """What a workflow hears and says."""

    _step: int | None = None
    """What ``ctx.v`` was given."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

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
        return self._listen(names, type, timeout, Durable)

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
            raise ValueError(f"listen_many: limit is {limit!r}; it is a whole number from 1")
        return self._listen(names, type, timeout, Batch, limit)

    def _listen(
        self,
        names: tuple[str, ...],
        type: TypeForm,
        timeout: Duration | None,
        made: type[Durable[Any]],
        limit: int | None = None,
    ) -> Durable[Any]:
        if not names or not all(isinstance(name, str) and name for name in names):
            raise ValueError(f"listen needs the names of the signals, as strings; got {names!r}")
        future = self._recorder.call(
            events.ListenStarted,
            ", ".join(names),
            codec_for(type),
            step=self._step,
            made=made,
            names=names,
            deadline=self._deadline(timeout),
            limit=limit,
        )
        self._recorder.listeners[future.command.seq] = names
        self._recorder.handlers.accepting.declare(names, type)
        return future

    def _deadline(self, timeout: Duration | None) -> int | None:
        return None if timeout is None else self._recorder.log.stamp() + max(0, milliseconds(timeout))

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
        if not isinstance(name, str) or not name:
            raise ValueError(f"ctx.promise: the name of a promise is a string that is not empty; got {name!r}")
        recorder = self._recorder
        _check_promise(recorder, name)
        secret, run_id = recorder.settings.secret, recorder.started.run_id

        def complete(place: Location) -> dict[str, Any]:
            return {"promise_id": promise_id(secret, run_id, place)}

        future = recorder.call(
            events.PromiseCreated,
            name,
            codec_for(type),
            step=self._step,
            made=Promise,
            complete=complete,
            deadline=self._deadline(timeout),
        )
        command = future.command
        if isinstance(command, events.PromiseCreated) and recorder.is_wanted(command):
            schema = events.NULL if type is Any else schema_of(type) or events.NULL
            recorder.outbox.add(command.seq, "promises", OpenPromise(command.promise_id, name, schema))
        return future  # type: ignore[return-value]  # made as one

    def resolve(self, promise_id: str, value: object = None) -> Durable[bool]:
        """Settle a promise of some workflow by its id; the future says whether it was the first settlement."""
        return outbound.settle(self._recorder, promise_id, value, self._step)

    def on_query(self, name: str) -> Callable[[F], F]:
        """Answer queries of this name by a plain function over the workflow's variables: ``@ctx.on_query("total")``."""
        _check_named(name, "query")

        def register(function: F) -> F:
            self._recorder.handlers.on_query(name, function)
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
        _check_named(name, "update")
        if not isinstance(one_at_a_time, bool):
            raise DefinitionError(f"update {name!r}: one_at_a_time must be True or False, got {one_at_a_time!r}")

        def register(function: F) -> F:
            self._recorder.handlers.on_update(name, function, validator, one_at_a_time=one_at_a_time)
            return function

        return register

    def on_signal(self, name: str) -> Callable[[F], F]:
        """Handle signals of this name as they come, by a function, async or plain, that may make durable calls."""
        _check_named(name, "signal")

        def register(function: F) -> F:
            self._recorder.handlers.on_signal(name, function)
            return function

        return register

    def handlers_finished(self) -> "asyncio.Future[None]":
        """Wait until no handler of a signal or an update is at work, and no signal that was received waits for one.

        It takes no place in the history. Await it before the workflow returns or continues as new.
        """
        return self._recorder.handlers.all_finished()


def _check_promise(recorder: Recorder, name: str) -> None:
    """Refuse a second open promise of a name: whoever settles it by the name must know which."""
    waiting = (future.command for future in recorder.pending.values())
    if any(isinstance(command, events.PromiseCreated) and command.name == name for command in waiting):
        raise AlreadyExists(f"this run has an open promise {name!r} already; give another name, or settle that first")


def _check_named(name: object, kind: str) -> None:
    if not isinstance(name, str) or not name:
        raise DefinitionError(f'@ctx.on_{kind}: its name is {name!r}; write @ctx.on_{kind}("name") before the function')
