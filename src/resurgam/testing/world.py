"""What is durable in a simulated world: the executions with their logs and inboxes, as a store would hold them.

There are no leases here, no queues and no clock but a number, so that a whole world can be copied after any entry and
gone on with, as workers go on after all of them were killed.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import msgspec

from resurgam.core import event as events
from resurgam.core.outcome import (
    ActivityRequest,
    ChildRequest,
    Entry,
    Forgotten,
    Message,
    Outcome,
    Publication,
    Succession,
)
from resurgam.core.state import ENDS, Status

_ENDS = tuple(ENDS)


@dataclass
class Promised:
    """A promise that can be settled by its id or its name, or has been."""

    name: str
    settled: bool = False


@dataclass
class Life:
    """One execution as it is stored.

    *ever* is all that was ever in its log; for what was forgotten, *forgotten_by* says by which checkpoint. *told* are
    the entries of the inbox that its code knows and has not come to yet, *left* those that it was offered and has not
    looked at: they go before whatever the worker brings next. *begun*: a worker has had it.
    """

    started: events.WorkflowStarted
    clock: int
    ever: list[events.Event] = field(default_factory=list)
    log: list[events.Event] = field(default_factory=list)
    forgotten_by: dict[int, int] = field(default_factory=dict)
    forgotten: int = 0
    inbox: dict[int, events.Event] = field(default_factory=dict)
    told: set[int] = field(default_factory=set)
    left: set[int] = field(default_factory=set)
    promises: dict[str, Promised] = field(default_factory=dict)
    requests: dict[int, ActivityRequest] = field(default_factory=dict)
    withdrawn: set[int] = field(default_factory=set)
    status: Status = Status.RUNNING
    wake_at: int | None = None
    begun: bool = False
    paused: bool = False

    def copy(self) -> "Life":
        """Return one that goes its own way from here."""
        return replace(
            self,
            ever=list(self.ever),
            log=list(self.log),
            forgotten_by=dict(self.forgotten_by),
            inbox=dict(self.inbox),
            told=set(self.told),
            left=set(self.left),
            promises={key: replace(promise) for key, promise in self.promises.items()},
            requests=dict(self.requests),
            withdrawn=set(self.withdrawn),
        )

    def as_of(self, seq: int) -> list[events.Event]:
        """Return what the log was after the entry with this ``seq``."""
        until = [entry for entry in self.ever if entry.seq <= seq]
        return [entry for entry in until if self.forgotten_by.get(entry.seq, seq + 1) > seq]

    @property
    def is_complete(self) -> bool:
        """Whether nothing more is recorded of it."""
        return isinstance(self.ever[-1], events.WorkflowDeactivated)

    def append(self, written: Iterable[events.Event], forgotten: Iterable[Forgotten] = ()) -> None:
        """Record entries, and forget what the checkpoints among them let go."""
        gone = iter(forgotten)
        for entry in written:
            self.ever.append(entry)
            self.log.append(entry)
            if isinstance(entry, events.LoopCheckpointed) or (isinstance(entry, events.LoopCompleted) and entry.whole):
                lost = islice(gone, entry.forgotten - self.forgotten)
                self.forgotten_by.update((one.seq, entry.seq) for one in lost)
                self.forgotten = entry.forgotten
                self.log = self.as_of(entry.seq)

    def open_activities(self) -> list[events.ActivityScheduled]:
        """Return the activities that wait for an answer, and that somebody may still begin."""
        answered = {entry.ref for entry in self.log if not isinstance(entry, events.ActivityRetryScheduled)}
        scheduled = (entry for entry in self.log if isinstance(entry, events.ActivityScheduled))
        return [one for one in scheduled if one.seq not in answered and one.seq not in self.withdrawn]

    def retries(self, ref: int) -> list[events.ActivityRetryScheduled]:
        """Return the attempts at an activity that have failed."""
        return [entry for entry in self.log if isinstance(entry, events.ActivityRetryScheduled) and entry.ref == ref]


@dataclass
class World:
    """All executions, in the order in which they began, and what was said on topics. *sent*: messages from outside."""

    clock: int
    lives: dict[str, Life] = field(default_factory=dict)
    published: list[Publication] = field(default_factory=list)
    sent: int = 0
    number: int = 0

    def copy(self) -> "World":
        """Return one that goes its own way from here."""
        lives = {key: life.copy() for key, life in self.lives.items()}
        return replace(self, lives=lives, published=list(self.published))

    def newest(self, entity_id: str) -> Life | None:
        """Return the newest execution of an entity."""
        return next((life for life in reversed(self.lives.values()) if life.started.entity_id == entity_id), None)

    def begin(self, started: events.Started, *, paused: bool = False) -> Life:
        """Have another execution."""
        assert isinstance(started, events.WorkflowStarted)
        life = Life(started, self.clock, [started], [started], paused=paused)
        self.lives[started.execution_id] = life
        return life

    def put(self, life: Life, event: events.Event) -> int:
        """Put something into an inbox, and return its number there."""
        self.number += 1
        life.inbox[self.number] = event
        return self.number

    def tell(self, life: Life, event: events.Event) -> None:
        """Do what an event does to an execution that is open."""
        if isinstance(event, events.WorkflowTerminated):
            at = max(self.clock, life.ever[-1].at)
            life.append([msgspec.structs.replace(event, seq=life.ever[-1].seq + 1, at=at)])
            life.status, life.wake_at = Status.TERMINATED, None
        elif not isinstance(event, events.WorkflowPaused | events.WorkflowResumed):
            self.put(life, event)
        elif life.paused != isinstance(event, events.WorkflowPaused):
            life.paused = not life.paused
            self.put(life, event)

    def settle(self, promise_id: str, event: events.Event, ending: Life | None = None) -> Promised | None:
        """Settle a promise unless it is settled; return what it was before, nothing if there is none.

        The commit that ends an execution may still settle its promises: the next attempt takes them over.
        """
        for life in self.lives.values():
            promise = life.promises.get(promise_id)
            if promise is not None:
                before = replace(promise, settled=promise.settled or (life.status.terminal and life is not ending))
                if not before.settled:
                    promise.settled = True
                    self.put(life, msgspec.structs.replace(event, promise_id=promise_id))
                return before
        return None

    # What an execution wants of the world.

    def commit(self, life: Life, outcome: Outcome) -> None:
        """Apply an outcome."""
        life.append(outcome.events, outcome.forgotten)
        for number in outcome.consumed:
            life.inbox.pop(number, None)
        life.told &= life.inbox.keys()
        life.left &= life.inbox.keys()
        life.requests.update((request.ref, request) for request in outcome.activities)
        life.status, life.wake_at = outcome.status, outcome.wake_at
        for withdrawal in outcome.withdrawals:
            begun = withdrawal.never_started and life.retries(withdrawal.ref)
            if withdrawal.entry is not None and not begun and withdrawal.ref not in life.withdrawn:
                life.withdrawn.add(withdrawal.ref)
                self.put(life, withdrawal.entry)
        self._send_out(life, outcome)

    def _send_out(self, life: Life, outcome: Outcome) -> None:
        for promise in outcome.promises:
            unread = {getattr(event, "promise_id", None) for event in life.inbox.values()}
            settled = promise.promise_id in life.promises and promise.promise_id in unread
            life.promises[promise.promise_id] = Promised(promise.name, settled)
        for promise_id in outcome.closed:
            life.promises.setdefault(promise_id, Promised("")).settled = True
        for request in outcome.children:
            self.put(life, self.bear(request))
        for message in outcome.messages:
            entry = self.send(message, life)
            if entry is not None:
                self.put(life, entry)
        self.published += outcome.publications
        if outcome.successor is not None:
            self._succeed(life, outcome.successor)

    def bear(self, request: ChildRequest) -> events.Event:
        """Begin a child, unless its id is in use; return what its parent is told."""
        started = request.started
        same = next((life for life in self.lives.values() if _is_same(life, started)), None)
        if same is not None:
            return msgspec.structs.replace(request.created, execution_id=same.started.execution_id)
        newest = self.newest(started.entity_id)
        if newest is None or newest.status.terminal:
            newest = self.begin(started)
        elif not _is_child(newest, started.parent.key if started.parent else ""):
            return request.refused
        return msgspec.structs.replace(request.created, execution_id=newest.started.execution_id)

    def send(self, message: Message, sender: Life | None = None) -> events.Event | None:
        """Tell another execution something; return what the sender is told."""
        if message.promise_id is not None:
            before = self.settle(message.promise_id, message.event, ending=sender)
            if before is None:
                return message.missing
            return message.ended if before.settled else message.delivered
        target = self.newest(message.entity_id)
        if target is None:
            return message.missing
        of_run = message.run_id in (None, target.started.run_id)
        if target.status.terminal or not of_run or (message.key and not _is_child(target, message.key)):
            return message.ended
        self.tell(target, message.event)
        return message.delivered

    def _succeed(self, life: Life, succession: Succession) -> None:
        """Begin the execution that follows, with what is its own and what the one before has not read."""
        following = self.begin(succession.started, paused=life.paused)
        for event in succession.inbox:
            self.put(following, event)
        for number in [key for key, event in life.inbox.items() if event.type in succession.moves]:
            self.put(following, life.inbox.pop(number))
        if following.started.run_id == life.started.run_id:
            following.promises, life.promises = life.promises, {}


def _is_same(life: Life, started: events.Started) -> bool:
    """Whether an execution is the very one that is to be begun: then that is done already."""
    own = life.started
    return (own.entity_id, own.run_id, own.attempt) == (started.entity_id, started.run_id, started.attempt)


def _is_child(life: Life, key: str) -> bool:
    return life.started.parent is not None and life.started.parent.key == key


def part_of(outcome: Outcome, number: int, life: Life, entries: Sequence[Entry]) -> Outcome:
    """Return the outcome that would have been if it had come no further than its first so many events.

    Each thing that an execution asks for goes with an entry, and is asked for if that is among them.
    """
    written = outcome.events[:number]
    last, ended = written[-1].seq, any(isinstance(entry, _ENDS) for entry in written)
    asked = (entry.seq for entry in outcome.events if isinstance(entry, events.ChildCancelRequested))
    messages = [(m, m.delivered.ref if m.delivered else next(asked, None)) for m in outcome.messages]
    opened = {entry.promise_id for entry in written if isinstance(entry, events.PromiseCreated)}
    closed = (events.PromiseTimedOut, events.PromiseCancelled)
    over = {entry.ref for entry in written if isinstance(entry, closed)}
    known = [entry for entry in (*life.log, *outcome.events) if isinstance(entry, events.PromiseCreated)]
    gone = {entry.promise_id for entry in known if entry.seq in over}
    said = sum(seq <= last for seq in _publishing(outcome))
    return Outcome(
        events=written,
        consumed=_consumed(written, entries),
        forgotten=outcome.forgotten,
        activities=tuple(request for request in outcome.activities if request.ref <= last),
        withdrawals=outcome.withdrawals if ended else (),
        promises=tuple(promise for promise in outcome.promises if promise.promise_id in opened),
        closed=tuple(promise_id for promise_id in outcome.closed if promise_id in gone),
        children=tuple(request for request in outcome.children if (request.created.ref or 0) <= last),
        messages=tuple(message for message, seq in messages if (ended if seq is None else seq <= last)),
        publications=outcome.publications[:said],
        successor=outcome.successor if ended else None,
        status=outcome.status if ended else Status.RUNNING,
    )


def is_remembered(outcome: Outcome, held: Sequence[Entry]) -> bool:
    """Whether the answer of an operation is held in memory, and not recorded by this outcome either."""
    recorded = {_mark(entry) for entry in outcome.events}
    return any(entry.id is None and _mark(entry.event) not in recorded for entry in held)


def _publishing(outcome: Outcome) -> list[int]:
    """Return the entries that the publications of an outcome go with.

    A retry writes the calls of the attempt before again, but publishes nothing for them: they come first.
    """
    calls = [entry for entry in outcome.events if isinstance(entry, events.MessagePublished)]
    found = []
    for publication in reversed(outcome.publications):
        while calls and (calls[-1].name, bytes(calls[-1].value)) != (publication.topic, bytes(publication.value)):
            calls.pop()
        if calls:
            found.append(calls.pop().seq)
    return found


def is_torn(life: Life, outcome: Outcome, part: Outcome, entries: Sequence[Entry], held: Sequence[Entry]) -> bool:
    """Whether a cut after so many events would part what is written at once or not at all.

    That is what goes out to others, whose answers come in the order in which it does: a child that is asked for is begun
    by the same commit, unless that answers it already. What an execution sends to itself reaches it, unless the same
    commit ends it. And what is *held* in memory, of the inbox or by the worker that did it: it is heard as soon as the
    code comes to it. An answer among the *entries* that leaves no trace, such as the failure of a child that is begun
    anew, has done what it does when it was known.
    """
    sent, all_sent = (len(one.children) + len(one.messages) for one in (part, outcome))
    asked = {entry.seq for entry in part.events if isinstance(entry, events.ChildScheduled)}
    unborn = asked.difference(request.created.ref for request in outcome.children)
    rest = outcome.events[len(part.events) :]
    ends = any(isinstance(entry, _ENDS) for entry in rest)
    heard = {entry.id for entry in held if entry.id in outcome.consumed}.difference(_consumed(part.events, held))
    brought = {_mark(entry.event) for entry in held if entry.id is None}
    return (
        0 < sent < all_sent
        or (ends and any(message.entity_id == life.started.entity_id for message in part.messages))
        or bool(heard)
        or bool(_untraced(outcome, entries))
        or any(isinstance(entry, events.ChildAnswer) and entry.ref in unborn and not entry.carried for entry in rest)
        or any(_mark(entry) in brought for entry in rest)
    )


def _untraced(outcome: Outcome, entries: Sequence[Entry]) -> set[int | None]:
    """Return the answers to children and promises that an outcome consumes without recording them."""
    answers = {entry.id for entry in entries if isinstance(entry.event, events.ChildAnswer | events.PromiseAnswer)}
    return answers.intersection(outcome.consumed).difference(_consumed(outcome.events, entries))


def _consumed(written: Sequence[events.Event], entries: Sequence[Entry]) -> tuple[int, ...]:
    """Return the numbers of the entries of the inbox that are among what was written."""
    marks = Counter(_mark(entry) for entry in written)
    consumed = []
    for entry in entries:
        if entry.id is not None and marks[_mark(entry.event)]:
            marks[_mark(entry.event)] -= 1
            consumed.append(entry.id)
    return tuple(consumed)


def _mark(event: events.Event) -> tuple[object, ...]:
    """Return by what an entry of the inbox is known again once it is recorded."""
    addressed = isinstance(event, events.ChildAnswer | events.PromiseAnswer)
    names = (getattr(event, field, None) for field in ("name", "id", "child", "promise_id"))
    return (event.type, None if addressed else event.ref, *names)
