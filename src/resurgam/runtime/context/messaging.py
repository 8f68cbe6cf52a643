"""Signals that the code listens for, and promises that are settled from outside."""

from collections.abc import Callable
from typing import Any, TypeVar

from resurgam.core import event as events
from resurgam.core.codec import TypeForm, codec_for
from resurgam.core.errors import AlreadyExists, DefinitionError
from resurgam.core.location import Location
from resurgam.core.outcome import OpenPromise
from resurgam.core.retry import Duration, milliseconds
from resurgam.core.schema import schema_of
from resurgam.runtime.ids import promise_id
from resurgam.runtime.loop.futures import Batch, Durable
from resurgam.runtime.matching.handlers import Handlers
from resurgam.runtime.matching.recorder import Recorder

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Promise(Durable[T]):
    """The future of a promise: await it for the value given from outside."""

    @property
    def promise_id(self) -> str:
        """The id by which the promise is settled."""
        return self.command.promise_id if isinstance(self.command, events.PromiseCreated) else ""


def listen(
    recorder: Recorder,
    handlers: Handlers,
    names: tuple[str, ...],
    type: TypeForm,
    timeout: Duration | None,
    *,
    step: int | None = None,
    limit: int | None = None,
) -> Durable[Any]:
    """Issue the command that waits for one signal, or with *limit* for a batch of them."""
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"listen: signal names must be non-empty strings, got {names!r}")
    future = recorder.call(
        events.ListenStarted,
        ", ".join(names),
        codec_for(type),
        step=step,
        made=Durable if limit is None else Batch,
        names=names,
        deadline=_deadline(recorder, timeout),
        limit=limit,
    )
    recorder.pending.add_listener(future.command.seq, names)
    handlers.schemas.declare(names, type)
    return future


def promise(
    recorder: Recorder, name: str, type: TypeForm, timeout: Duration | None, *, step: int | None = None
) -> Promise[Any]:
    """Issue the command that waits for a settlement, and open the promise with the commit."""
    if not isinstance(name, str) or not name:
        raise ValueError(f"ctx.promise: the name of a promise must be a non-empty string, got {name!r}")
    _check_promise(recorder, name)
    secret, started = recorder.settings.secret, recorder.started

    def complete(location: Location) -> dict[str, Any]:
        return {"promise_id": promise_id(secret, started.entity_id, started.run_id, location)}

    future = recorder.call(
        events.PromiseCreated,
        name,
        codec_for(type),
        step=step,
        made=Promise,
        complete=complete,
        deadline=_deadline(recorder, timeout),
    )
    command = future.command
    if isinstance(command, events.PromiseCreated) and recorder.is_wanted(command):
        schema = events.NULL if type is Any else schema_of(type) or events.NULL
        recorder.outbox.add(command.seq, "promises", OpenPromise(command.promise_id, name, schema))
    return future  # type: ignore[return-value]  # made as one


def _deadline(recorder: Recorder, timeout: Duration | None) -> int | None:
    return None if timeout is None else recorder.log.stamp() + max(0, milliseconds(timeout))


def _check_promise(recorder: Recorder, name: str) -> None:
    """Refuse a second open promise of the same name, because a promise can be settled by its name."""
    waiting = recorder.pending.commands()
    if any(isinstance(command, events.PromiseCreated) and command.name == name for command in waiting):
        raise AlreadyExists(f"this run already has an open promise {name!r}; use another name, or settle that first")


def check_name(name: object, kind: str) -> None:
    """Refuse a handler decorator without a name."""
    if not isinstance(name, str) or not name:
        raise DefinitionError(f'@ctx.on_{kind} needs a non-empty name, got {name!r}; write @ctx.on_{kind}("name")')
