"""Settle promises from outside: the first settlement counts, later ones answer False while the run is kept."""

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
from resurgam.store.records import Delivered, Delivery, Ended, HeldPromise, Missing, Settled

Settlement = events.PromiseResolved | events.PromiseRejected


def resolved(access: Access, what: str, value: object) -> Settlement:
    """Return the settlement that gives a value."""
    written = access.write(value, f"promise {what!r}")
    return events.PromiseResolved(ref=0, at=access.clock.now(), value=written)


def rejected(access: Access, what: str, error: BaseException | str) -> Settlement:
    """Return the settlement that says there will be no value, and why."""
    if isinstance(error, str):
        error = Exception(error)
    if not isinstance(error, BaseException):
        raise TypeError(f"promise {what!r} is rejected with {error!r}; give an exception or a text")
    failure = capture(error)
    check_size(access.max_payload, Raw(json.encode(failure)), f"promise {what!r}, error")
    return events.PromiseRejected(ref=0, at=access.clock.now(), failure=failure)


async def deliver(access: Access, to: Delivery) -> Delivered | Missing | Ended | Settled:
    """Deliver a settlement; refuse a value that the open promise does not take: `SerializationError`."""
    if isinstance(to.event, events.PromiseResolved):
        held = await access.store.promise(to)
        if held is not None and not held.promise.settled and not held.instance.status.terminal:
            await _check(access, held, to.event.value)
    [answer] = await access.store.deliver([to])
    return answer


async def _check(access: Access, held: HeldPromise, value: Raw) -> None:
    """Hold a value against the schema of a promise, and if it does not fit, against the code that is registered here."""
    promise, instance = held.promise, held.instance
    wrong = None if promise.schema == events.NULL else mismatch(promise.schema, value)
    if wrong is None:
        return
    if instance.name in access.registry.workflows:
        # The code may have been changed since it made the promise, and take another type now.
        workflow = access.registry.workflows.find(instance.name)
        log = await access.store.history(instance.execution_id)
        if await run_outside_task(lambda: query.takes(workflow, log, promise.promise_id, value)):
            return
    path, reason = wrong
    raise SerializationError(
        f"promise {promise.name!r}{path}", f"{reason}; the promise of workflow {instance.entity_id!r} was not settled"
    )


async def settle_by_id(access: Access, promise_id: str, settlement: Settlement) -> bool:
    """Settle a promise by its id; whether this was the first to do so."""
    answer = await deliver(access, Delivery(event=settlement, promise_id=promise_id))
    if isinstance(answer, Missing):
        raise NotFound(f"there is no promise with id {promise_id!r}; its run may have been purged")
    return isinstance(answer, Delivered)


def was_first(
    answer: Delivered | Missing | Ended | Settled, log: Sequence[events.Event], entity_id: str, name: str
) -> bool:
    """Return whether a settlement by name was the first; *log* names the promises that the store has dropped."""
    if isinstance(answer, Delivered | Settled):
        return isinstance(answer, Delivered)
    known = sorted({entry.name for entry in log if isinstance(entry, events.PromiseCreated)})
    if name in known:
        return False
    raise NotFound(f"workflow {entity_id!r} has no promise {name!r}; it has {', '.join(map(repr, known)) or 'none'}")


def check_promise(what: object) -> None:
    """Refuse an id or a name of a promise that is none."""
    check_text(what, "the id or the name of a promise")
