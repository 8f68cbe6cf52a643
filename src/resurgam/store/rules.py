"""The rules that all stores share, as pure functions: who is addressed, what an event does, what a request is answered.

A rule that only one store follows stays in that store. The simulation of `testing` follows them too.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import Final, Protocol

import msgspec
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.outcome import ActivityRequest, ChildRequest, Entry, Message, Outcome, Withdrawal
from resurgam.core.state import Status
from resurgam.store import records as r

REDELIVERIES: Final = 20
"""Deliveries without an answer after which work becomes a dead letter: a task that kills its worker must not kill
all of them."""

OUTLIVES: Final = '"outlives":true}'
"""How the text of an activity ends that is begun even after its instance has ended: the encoder writes this field last."""

PROMISES_KEPT: Final = 1000
"""Settled promises that an execution keeps, so that late settlements are answered as late. A loop that runs for ever
would otherwise leave ever more of them."""

TRIED_KEPT: Final = 1000
"""Workers that are remembered because their code does not fit a parked run. Each start of a worker is another one; if one
of them is forgotten, it tries the run once more."""

COVERED: Final = 8
"""Activities that the lease on their instance covers at most."""

MESSAGES_KEPT: Final = 60_000
"""Milliseconds for which a published message is kept."""


class Known(Protocol):
    """What identifies an execution: an `Instance` and a first entry both do."""

    @property
    def execution_id(self) -> str:
        """Its own id."""
        ...

    @property
    def run_id(self) -> str:
        """Its run."""
        ...

    @property
    def attempt(self) -> int:
        """Its attempt within the run."""
        ...

    @property
    def parent(self) -> events.Parent | None:
        """The call that started it."""
        ...


# Creation.


class Way(Enum):
    """What the newest execution of an entity means for the creation of another."""

    BEGIN = auto()
    """It is closed, and another may follow."""

    REPLACE = auto()
    """It is open, and must be terminated first."""

    DELIVER = auto()
    """It is open and stays: it receives the inbox of the creation."""

    LEAVE = auto()
    """Nothing is created and nothing delivered."""


def way_past(newest: r.Instance, part: r.Creation) -> Way:
    """Return what must happen to the newest execution of an entity when another is to be created."""
    closed = newest.status.terminal
    if part.follows is not None:
        return Way.BEGIN if closed and newest.execution_id == part.follows else Way.LEAVE
    if closed:
        return Way.LEAVE if part.attach else Way.BEGIN
    return Way.REPLACE if part.replace is not None and not part.attach else Way.DELIVER


def is_same(known: Known, started: events.Started) -> bool:
    """Whether an execution is the one to be created: then it was created before."""
    return (known.run_id, known.attempt) == (started.run_id, started.attempt)


# Children and messages.


def is_child(known: Known, key: str) -> bool:
    """Whether an execution was started by the call with this key, or follows one that was."""
    return known.parent is not None and known.parent.key == key


def first_run(known: Known) -> str:
    """Return the run that an execution began with: its own, or that of the call for which it retries or continues."""
    return known.parent.first_run or known.run_id if known.parent is not None else known.run_id


def ran_for(known: Known, started: events.Started) -> bool:
    """Whether an execution ran for the request of a child: the first one, its retries and its continuations."""
    return first_run(known) == started.run_id


def is_outdated(part: r.Delivery, schemas: Mapping[str, Raw]) -> bool:
    """Whether a signal was checked against other schemas than these, which its receiver has now."""
    return part.schemas is not None and part.schemas != schemas


def is_addressed(known: Known, message: Message) -> bool:
    """Whether a message is for this execution of its entity."""
    of_run = message.run_id in (None, known.run_id)
    return of_run and (message.key is None or is_child(known, message.key))


def child_started(request: ChildRequest, child: Known) -> events.Event:
    """Return the answer to a request whose child is there, with the id of its execution."""
    created = request.created
    if isinstance(created, events.ChildStarted):
        return msgspec.structs.replace(created, execution_id=child.execution_id)
    return created


def answer_child(
    request: ChildRequest, same: Known | None, newest: Known | None, *, closed: bool
) -> events.Event | None:
    """Return the answer to a child request; None if the child must be started.

    *same* is the first execution that `ran_for` the request before, *newest* the newest of the entity, which is
    *closed* or open. The answer of a child that ran for this request follows: see `ChildRequest`.
    """
    if same is not None:
        return child_started(request, same)
    if newest is None or closed:
        return None
    parent = request.started.parent
    return child_started(request, newest) if parent is not None and is_child(newest, parent.key) else request.refused


def child_pause(paused: r.Pause | None) -> r.Pause | None:
    """Return how a child is paused when its parent is."""
    return r.Pause.TREE if paused is r.Pause.TREE else None


def kept_answer(outcome: Outcome) -> events.Event | None:
    """Return the answer to its parent that the store keeps with the execution of this outcome."""
    return next((message.event for message in outcome.messages if message.kept), None)


# Events.


def begins(event: events.Event) -> bool:
    """Whether an event ends the wait of a scheduled instance."""
    return isinstance(event, events.WorkflowBegun | events.CancelRequested)


def pause_after(paused: r.Pause | None, event: events.WorkflowPaused) -> r.Pause | None:
    """Return the pause that a request changes to; None if it changes nothing. A pause can be widened, not narrowed."""
    if paused is r.Pause.TREE or (paused is r.Pause.ALONE and not event.tree):
        return None
    return r.Pause.TREE if event.tree else r.Pause.ALONE


def settlement(event: events.Event, promise_id: str) -> events.Event:
    """Return the event that settles a promise, with the id by which the execution finds it."""
    return msgspec.structs.replace(event, promise_id=promise_id) if isinstance(event, events.PromiseAnswer) else event


def start_of(request: ActivityRequest, deliveries: int) -> events.Event | None:
    """Return the entry that the claim of an activity puts into the inbox, its delivery being the one with this number."""
    return None if request.starts is None else msgspec.structs.replace(request.starts, attempt=deliveries)


# Commits.


def overtakes(entries: Iterable[Entry]) -> bool:
    """Whether a strict commit is refused that has not seen these: the end of a child, the settlement of a promise."""
    return any(isinstance(entry.event, events.ChildAnswer | events.PromiseAnswer) for entry in entries)


def status_after(status: Status, outcome: Outcome) -> Status:
    """Return the status that a commit leaves: an instance that was begun meanwhile is not scheduled again."""
    begun = outcome.status is Status.SCHEDULED and status is Status.RUNNING
    return Status.RUNNING if begun else outcome.status


def covered_by(part: r.Commit, claimed: Sequence[ActivityRequest]) -> Sequence[ActivityRequest]:
    """Return those of the activities *claimed* by a commit that the lease on its instance covers.

    They are at most a few, because all of them are written again with every commit: beyond that a row for each costs
    less.
    """
    if not part.covers:
        return ()
    room = COVERED - len(part.running)
    return claimed if len(claimed) <= room else claimed[: max(0, room)]


def is_withdrawn(withdrawal: Withdrawal) -> bool:
    """Whether a withdrawal removes an activity that a worker is running."""
    return withdrawal.answered and not withdrawal.never_started


# Dead letters.


def instance_dead_letter(deliveries: int, last_failure: str) -> str:
    """Return why an instance is no longer handed out."""
    return f"handed out {deliveries} times without a commit{last_failure}"


def activity_dead_letter(request: ActivityRequest, deliveries: int) -> str:
    """Return why an activity is no longer handed out."""
    return f"activity {request.name!r} (entry {request.ref}) was handed out {deliveries} times without an answer"


def failure_note(failed: str | None) -> str:
    """Return what is added to the reason of a dead letter about its last failed delivery."""
    return f"; the last error: {failed}" if failed else ""
