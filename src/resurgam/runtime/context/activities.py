"""`ctx.activity`: issue the command of an activity, and put its request into the outbox."""

from hashlib import blake2b
from typing import Any, Final

from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.codec import check_size
from resurgam.core.errors import DefinitionError
from resurgam.core.identity import entity_of
from resurgam.core.outcome import ActivityRequest
from resurgam.runtime.definitions.definition import Activity, activity_of
from resurgam.runtime.loop.futures import Durable
from resurgam.runtime.matching.recorder import ANY, Place, Recorder

_OPTIONS: Final = frozenset({"queue", "retry", "timeout", "start_timeout", "heartbeat_timeout"})


def schedule(
    recorder: Recorder,
    wanted: Activity[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    step: int | None = None,
    key: str | None = None,
    limited: bool = True,
) -> Durable[Any]:
    """Issue the command of an activity. Set *limited* to False if its arguments are already recorded elsewhere."""
    queue = wanted.settings.queue or recorder.started.queue
    if recorder.mode.rehearsing:
        return recorder.call(events.ActivityScheduled, wanted.name, step=step, key=key, queue=queue)
    # On replay too: arguments that cannot be encoded raise before the call takes a location, as they did live.
    written = ANY.encode(args, wanted.name) if wanted.signature is None else wanted.signature.encode(args, kwargs)
    if limited and len(written) > recorder.settings.max_payload:
        check_size(recorder.settings.max_payload, written, f"arguments of activity {wanted.name!r}")
    digest = None
    if not recorder.verdict.routine:
        if recorder.verdict.exhausted:
            return recorder.endless(wanted.result)
        # Of a routine call no inputs are compared, so that only a new one needs the fingerprint.
        digest = fingerprint(written)
    found = recorder.place(events.ActivityScheduled, wanted.name, step, key, None, digest, written)
    if type(found) is Place:
        command = _append(recorder, wanted, found, queue, written, key)
    else:
        assert isinstance(found, events.ActivityScheduled)
        command = found
    future = recorder.wait_for(command, wanted.result)
    if command is not found and (recorder.verdict.routine or recorder.is_wanted(command)):
        recorder.outbox.activities[command.seq] = _request(wanted, recorder, command)
    if wanted.start_limit is not None and command.start_by is not None and recorder.log.is_open(command):
        recorder.pending.add_start_deadline(command.start_by, command.seq)
    return future


def _append(
    recorder: Recorder, wanted: Activity[..., Any], place: Place, queue: str, written: Raw, key: str | None
) -> events.ActivityScheduled:
    log, limit = recorder.log, wanted.start_limit
    at = log.stamp()
    return log.schedule(
        events.ActivityScheduled(
            seq=log.state.last_seq + 1,
            at=at,
            location=place.location,
            version=place.version,
            command=place.command,
            gate=place.gate,
            key=key,
            name=wanted.name,
            queue=queue,
            input=written,
            digest=blake2b(written, digest_size=8).hexdigest(),  # `fingerprint`, without its call
            start_by=None if limit is None else at + limit,
        )
    )


def resolve_activity(given: object, kwargs: dict[str, Any]) -> Activity[..., Any]:
    """Return the activity for a definition or a name; refuse options among its arguments."""
    wanted = activity_of(given)
    if not kwargs:
        return wanted
    parameters = frozenset() if wanted.signature is None else wanted.signature.parameters
    misplaced = sorted(_OPTIONS & kwargs.keys() - parameters)
    if misplaced:
        option = misplaced[0]
        raise DefinitionError(
            f"activity {wanted.name!r} has no parameter {option!r}; for the option write "
            f"ctx.activity({wanted.name}.options({option}={kwargs[option]!r}), ...)"
        )
    if wanted.signature is None:
        raise DefinitionError(f"activity {wanted.name!r} is known by name only; pass its arguments by position")
    return wanted


def _request(wanted: Activity[..., Any], recorder: Recorder, command: events.ActivityScheduled) -> ActivityRequest:
    started, common = recorder.started, wanted.request
    # After its saga step was compensated, the activity needs another idempotency key.
    undone = 0 if recorder.verdict.routine else recorder.carryover.times_undone(command.location)
    return ActivityRequest(
        ref=command.seq,
        queue=command.queue,
        input=command.input,
        entity_id=entity_of(started.run_id, command.location, undone),
        workflow_attempt=started.attempt,
        # One by one: to unpack the dict costs as much as the rest of the request.
        name=common["name"],
        retry=common["retry"],
        timeout=common["timeout"],
        heartbeat=common["heartbeat"],
        executor=common["executor"],
    )


def fingerprint(written: Raw) -> str:
    """Return the digest of a recorded value, by which replay detects a changed argument."""
    return blake2b(written, digest_size=8).hexdigest()
