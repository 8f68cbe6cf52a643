"""Settle promises from outside: the first settlement counts, later ones answer False while the run is kept."""

from collections.abc import Sequence

from msgspec import Raw, json

from resurgam.client.access import Access, check_text
from resurgam.core import event as events
from resurgam.core.codec import within
from resurgam.core.errors import NotFound
from resurgam.core.failure import capture
from resurgam.store.records import Delivered, Delivery, Ended, Missing, Settled

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
    within(access.max_payload, Raw(json.encode(failure)), f"promise {what!r}, error")
    return events.PromiseRejected(ref=0, at=access.clock.now(), failure=failure)


async def settle_by_id(access: Access, promise_id: str, settlement: Settlement) -> bool:
    """Settle a promise by its id; whether this was the first to do so."""
    [answer] = await access.store.deliver([Delivery(event=settlement, promise_id=promise_id)])
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
