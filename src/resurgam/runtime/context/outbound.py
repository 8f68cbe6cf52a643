"""Messages from a workflow to others: signals and settlements, which are answered, and publications, which are not."""

import asyncio
from hashlib import blake2b
from typing import Any

from msgspec import Raw

from resurgam.core import errors
from resurgam.core import event as events
from resurgam.core.codec import codec_for
from resurgam.core.failure import capture
from resurgam.core.identity import entity_of
from resurgam.core.outcome import Message, Publication
from resurgam.runtime.loop.futures import Durable
from resurgam.runtime.matching.recorder import Recorder

_ANY = codec_for(Any)


def send(
    recorder: Recorder, entity_id: str, name: str, value: object, step: int | None = None, key: str | None = None
) -> Durable[None]:
    """Send a signal to the newest execution of a workflow; with *key*, only to the child that has it."""
    for what, given in (("workflow id", entity_id), ("signal name", name)):
        if not isinstance(given, str) or not given:
            raise ValueError(f"ctx.signal: {what} must be a non-empty string, got {given!r}")
    written = recorder.payloads.write(_ANY, value, f"signal {name!r}")
    own = recorder.started

    def complete(location: Any) -> dict[str, Any]:
        # The same location and content make the same signal, so that attempts of this workflow do not send it twice.
        return {"id": f"{entity_of(own.run_id, location)}.{digest}"}

    digest = _digest(recorder, written, entity_id)
    future = recorder.call(
        events.SignalSent, name, step=step, complete=complete, digest=digest, entity_id=entity_id, value=written
    )
    command = future.command
    if recorder.is_wanted(command) and not recorder.mode.rehearsing and isinstance(command, events.SignalSent):
        what = f"workflow {entity_id!r}"
        received = events.SignalReceived(at=command.at, name=name, id=command.id, value=written)
        message = _message(command, received, f"there is no {what}", f"{what} is closed and accepts no more signals")
        recorder.outbox.add(command.seq, "messages", _to(message, entity_id=entity_id, key=key))
    return future


def settle(recorder: Recorder, promise_id: str, value: object, step: int | None = None) -> Durable[bool]:
    """Settle a promise of any workflow; the future tells whether this was the first settlement."""
    if not isinstance(promise_id, str) or not promise_id:
        raise ValueError(f"ctx.resolve: promise id must be a non-empty string, got {promise_id!r}")
    written = recorder.payloads.write(_ANY, value, "value of a promise")
    _check_own(recorder, promise_id, written)
    future = recorder.call(
        events.PromiseSettled, promise_id, step=step, digest=_digest(recorder, written), value=written
    )
    command = future.command
    if recorder.is_wanted(command) and not recorder.mode.rehearsing:
        resolved = events.PromiseResolved(ref=0, at=command.at, promise_id=promise_id, value=written)
        message = _message(command, resolved, f"there is no open promise {promise_id!r}", "")
        recorder.outbox.add(command.seq, "messages", _to(message, promise_id=promise_id))
    return future


def _check_own(recorder: Recorder, promise_id: str, written: Any) -> None:
    """Refuse a value that a promise of this run does not accept; the types of other promises are not known here."""
    future = recorder.pending.open_promise(promise_id)
    if future is not None:
        recorder.payloads.read(future.codec, written, f"value of promise {future.command.name!r}")


def publish(recorder: Recorder, topic: str, value: object, step: int | None = None) -> "asyncio.Future[None]":
    """Publish a message to the current subscribers of a topic."""
    if not isinstance(topic, str) or not topic:
        raise ValueError(f"ctx.publish: topic must be a non-empty string, got {topic!r}")
    written = recorder.payloads.write(_ANY, value, f"message on {topic!r}")
    digest = _digest(recorder, written)
    command = recorder.issue(events.MessagePublished, topic, step=step, digest=digest, value=written)
    published = recorder.carryover.anything and recorder.carryover.has_published(command)
    if recorder.log.is_new(command) and not recorder.mode.rehearsing and not published:
        recorder.outbox.add(command.seq, "publications", Publication(topic, written))
    done: asyncio.Future[None] = recorder.loop.create_future()
    done.set_result(None)
    return done


def _digest(recorder: Recorder, written: Raw, to: str = "") -> str | None:
    """Return the fingerprint of a message and its recipient."""
    return None if recorder.mode.rehearsing else blake2b(f"{to}\0".encode() + bytes(written), digest_size=8).hexdigest()


def _message(command: events.Command, event: events.Event, missing: str, ended: str) -> dict[str, Any]:
    """Return the fields of a message, with the three entries that report its delivery to the sender."""
    ref, at = command.seq, command.at
    gone: events.Event = events.SignalDelivered(ref=ref, at=at, first=False)
    if ended:
        gone = events.SignalFailed(ref=ref, at=at, failure=capture(errors.NotFound(ended)))
    return {
        "event": event,
        "delivered": events.SignalDelivered(ref=ref, at=at),
        "missing": events.SignalFailed(ref=ref, at=at, failure=capture(errors.NotFound(missing))),
        "ended": gone,
    }


def _to(message: dict[str, Any], **target: Any) -> Message:
    return Message(**message, **target)
