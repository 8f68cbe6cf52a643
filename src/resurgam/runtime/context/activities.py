"""`ctx.activity`: issue the command of an activity, and put its request into the outbox."""

from hashlib import blake2b
from typing import Any, Final

from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.codec import check_size
from resurgam.core.errors import DefinitionError
from resurgam.core.identity import entity_of
from resurgam.core.outcome import ActivityRequest
from resurgam.core.retry import milliseconds
from resurgam.runtime.definitions.definition import Activity, activity_of
from resurgam.runtime.loop.futures import Durable
from resurgam.runtime.matching.recorder import ANY, Recorder

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
    written = ANY.encode(args, wanted.name) if wanted.signature is None else wanted.signature.encode(args, kwargs)
    if limited:
        check_size(recorder.settings.max_payload, written, f"arguments of activity {wanted.name!r}")
    limit = wanted.start_limit
    future = recorder.call(
        events.ActivityScheduled,
        wanted.name,
        wanted.result,
        step=step,
        key=key,
        queue=queue,
        input=written,
        digest=fingerprint(written),
        start_by=None if limit is None else recorder.log.stamp() + limit,
    )
    command = future.command
    if recorder.is_wanted(command):
        recorder.outbox.activities[command.seq] = _request(wanted, recorder, command, queue, written)
    if limit is not None and recorder.log.is_open(command):
        assert isinstance(command, events.ActivityScheduled)
        if command.start_by is not None:
            recorder.pending.add_start_deadline(command.start_by, command.seq)
    return future


def resolve_activity(given: object, kwargs: dict[str, Any]) -> Activity[..., Any]:
    """Return the activity for a definition or a name; refuse options among its arguments."""
    wanted = activity_of(given)
    parameters = set() if wanted.signature is None else wanted.signature.parameters
    misplaced = sorted(_OPTIONS & kwargs.keys() - parameters)
    if misplaced:
        option = misplaced[0]
        raise DefinitionError(
            f"activity {wanted.name!r} has no parameter {option!r}; for the option write "
            f"ctx.activity({wanted.name}.options({option}={kwargs[option]!r}), ...)"
        )
    if wanted.signature is None and kwargs:
        raise DefinitionError(f"activity {wanted.name!r} is known by name only; pass its arguments by position")
    return wanted


def _request(
    wanted: Activity[..., Any], recorder: Recorder, command: events.Command, queue: str, written: Raw
) -> ActivityRequest:
    settings = wanted.settings
    # After its saga step was compensated, the activity needs another idempotency key.
    carryover = recorder.carryover
    undone = carryover.times_undone(command.location) if carryover.undone else 0
    return ActivityRequest(
        ref=command.seq,
        name=wanted.name,
        queue=queue,
        input=written,
        entity_id=entity_of(recorder.started.run_id, command.location, undone),
        retry=None if wanted.is_by_name else wanted.rule,
        timeout=None if settings.timeout is None else milliseconds(settings.timeout),
        heartbeat=wanted.heartbeat,
        executor=settings.executor,
        workflow_attempt=recorder.started.attempt,
    )


def fingerprint(written: Raw) -> str:
    """Return the digest of a recorded value, by which replay detects a changed argument."""
    return blake2b(bytes(written), digest_size=8).hexdigest()
