"""Settle promises from outside. The first settlement counts; later ones return False while the store keeps the run."""

from collections.abc import Sequence

from msgspec import Raw, json

from resurgam.client.access import Access, check_text
from resurgam.core import event as events
from resurgam.core.codec import check_size
from resurgam.core.errors import NotFound, SerializationError
from resurgam.core.failure import capture
from resurgam.core.schema import mismatch
from resurgam.runtime.loop.outside_task import run_outside_task
from resurgam.runtime.rehearsal import query
from resurgam.store.records import Delivered, Delivery, Ended, HeldPromise, Missing, Outdated, Settled

Settlement = events.PromiseResolved | events.PromiseRejected


def resolution(access: Access, what: str, value: object) -> Settlement:
    """Return the settlement that resolves a promise to a value."""
    encoded = access.encode(value, f"promise {what!r}")
    return events.PromiseResolved(ref=0, at=access.clock.now(), value=encoded)


def rejection(access: Access, what: str, error: BaseException | str) -> Settlement:
    """Return the settlement that rejects a promise with an error."""
    if isinstance(error, str):
        error = Exception(error)
    if not isinstance(error, BaseException):
        raise TypeError(f"promise {what!r} must be rejected with an exception or a string, got {error!r}")
    failure = capture(error)
    check_size(access.max_payload, Raw(json.encode(failure)), f"promise {what!r}, error")
    return events.PromiseRejected(ref=0, at=access.clock.now(), failure=failure)


async def deliver(access: Access, to: Delivery) -> Delivered | Missing | Ended | Settled | Outdated:
    """Deliver a settlement; raise `SerializationError` for a value that the open promise does not accept."""
    if isinstance(to.event, events.PromiseResolved):
        held = await access.store.inspector.promise(to)
        if held is not None and not held.promise.settled and not held.instance.status.terminal:
            await _check(access, held, to.event.value)
    [answer] = await access.store.deliver([to])
    return answer


async def _check(access: Access, held: HeldPromise, value: Raw) -> None:
    """Check a value against the schema of a promise and, if it does not fit, against the code registered here."""
    promise, instance = held.promise, held.instance
    wrong = None if promise.schema == events.NULL else mismatch(promise.schema, value)
    if wrong is None:
        return
    workflow = access.workflow_of(instance)
    if workflow is not None:
        # The code may have changed since it created the promise, and accept another type now.
        log = await access.store.inspector.history(instance)
        if await run_outside_task(lambda: query.accepts_value(workflow, log, promise.promise_id, value)):
            return
    path, reason = wrong
    raise SerializationError(
        f"promise {promise.name!r}{path}", f"{reason}; the promise of workflow {instance.entity_id!r} was not settled"
    )


async def settle_by_id(access: Access, promise_id: str, settlement: Settlement) -> bool:
    """Settle a promise by its id; return whether this settlement was the first."""
    answer = await deliver(access, Delivery(event=settlement, promise_id=promise_id))
    if isinstance(answer, Missing):
        raise NotFound(f"there is no promise with id {promise_id!r}; its run may have been purged")
    return isinstance(answer, Delivered)


def was_first(
    answer: Delivered | Missing | Ended | Settled | Outdated, log: Sequence[events.Event], entity_id: str, name: str
) -> bool:
    """Return whether a settlement by name was the first; *log* names promises that the store no longer keeps."""
    if isinstance(answer, Delivered | Settled):
        return isinstance(answer, Delivered)
    known = sorted({entry.name for entry in log if isinstance(entry, events.PromiseCreated)})
    if name in known:
        return False
    raise NotFound(f"workflow {entity_id!r} has no promise {name!r}; it has {', '.join(map(repr, known)) or 'none'}")


def check_promise(what: object) -> None:
    """Refuse a promise id or name that is not a non-empty string."""
    check_text(what, "promise id or name")
