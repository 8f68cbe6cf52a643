"""Random values for stories: events, parts of verbs, outcomes."""

import random
from collections.abc import Iterable

from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.flow_event import WorkStarted
from resurgam.core.location import Location
from resurgam.core.outcome import (
    ActivityRequest,
    ChildRequest,
    Forgotten,
    Message,
    OpenPromise,
    Outcome,
    Publication,
    Span,
    Succession,
    Withdrawal,
)
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.rules import MESSAGES_KEPT
from resurgam.testing import ManualClock
from resurgam.testing.contract.bench import routed

ENTITIES = ("a", "b", "c", "d")
CHILDREN = ("child-0", "child-1")
QUEUES = ("x", "y")
TOPICS = ("t", "u")
NAMES = ("m", "n")
SCHEMAS = ({}, {"s": Raw(b'{"type":"integer"}')})
TAGS = ({}, {"k": "v"}, {"k": "v", "l": "w"})
LATER_TAGS = (*TAGS, {"k": "ü", "": "{x}"})
LOCATIONS = (Location((1,)), Location((2,)), Location((2, 1)))


class Chance:
    """Values made by a seeded generator. Every event has a number of its own, so that no two are equal.

    *entities* are the entity of each execution that was ever named; *present* are those executions, and *promises* those
    promises, that are in the stores. *instances* are those whose log is there too. *published* has the moment of each topic
    and value.
    """

    def __init__(self, seed: int, clock: ManualClock) -> None:
        self.random = random.Random(seed)
        self.clock = clock
        self.number = 0
        self.entities: dict[str, str] = {}
        self.present: list[str] = []
        self.instances: list[r.Instance] = []
        self.promises: list[str] = []
        self.published: dict[tuple[str, bytes], int] = {}
        self.choice = self.random.choice
        self.below = self.random.randrange

    def hits(self, share: float) -> bool:
        return self.random.random() < share

    def next(self) -> int:
        self.number += 1
        return self.number

    def many(self, *counts: int) -> range:
        return range(self.choice(counts))

    # Names.

    def some_execution(self) -> str:
        if self.present and self.hits(0.9):
            return self.choice(self.present)
        return self.choice(["e-unknown", *list(self.entities)[-12:]])

    def some_ref(self) -> r.ExecutionRef:
        execution_id = self.some_execution()
        return r.ExecutionRef(entity_id=self.entities.get(execution_id, "unknown"), execution_id=execution_id)

    @property
    def complete(self) -> list[r.Instance]:
        return [instance for instance in self.instances if instance.deactivated]

    def reservation(self) -> r.Reservation:
        """Return one of an execution that is complete, or of any; its entry may not be the next one."""
        ref, last_seq = self.some_ref(), 2
        known = self.complete if self.hits(0.6) else self.instances
        if known and self.hits(0.9):
            instance = self.choice(known)
            ref = r.ExecutionRef(entity_id=instance.entity_id, execution_id=instance.execution_id)
            last_seq = instance.last_seq
        event = events.WorkflowArchiving(seq=last_seq + self.choice((1, 1, 1, 2)), at=self.next(), archiver="w")
        return r.Reservation(entity_id=ref.entity_id, execution_id=ref.execution_id, event=event)

    def promise_id(self) -> str:
        if self.promises and self.hits(0.8):
            return self.choice(self.promises)
        return routed("p-unknown", self.choice(ENTITIES))

    def query_id(self, entity_id: str | None = None) -> str:
        return routed("q", entity_id or self.choice(ENTITIES))

    def offer(self, worker: str) -> r.EagerOffer | None:
        return r.EagerOffer(worker=worker, queues=self.choice((("x",), QUEUES))) if self.hits(0.6) else None

    # Events.

    def started(self, entity_id: str, **fields: object) -> events.WorkflowStarted:
        number = self.next()
        self.entities[f"e-{number}"] = entity_id
        later = self.choice(({}, {}, {}, {"begins_at": self.clock.now() + 100}, {"deferred": True}))
        run = self.choice((number, number, number, self.below(number + 1)))
        given = {
            "execution_id": f"e-{number}",
            "run_id": f"r-{run}",
            "attempt": self.choice((1, 1, 2)),
            "queue": self.choice(QUEUES),
            "name": self.choice(NAMES),
            "tree_id": self.choice(("tree", f"r-{run}")),
            "tags": self.choice(TAGS),
        }
        return events.WorkflowStarted(
            seq=1, at=self.clock.now(), python="3.11", entity_id=entity_id, **(given | later | fields)
        )

    def signal(self) -> events.SignalReceived:
        return events.SignalReceived(name="s", id=f"{self.next()}", at=1)

    def arrival(self) -> events.Event:
        return self.signal() if self.hits(0.7) else events.CancelRequested(at=self.next())

    def arrivals(self, *counts: int) -> tuple[events.Event, ...]:
        return tuple(self.arrival() for _ in self.many(*counts))

    def event(self) -> events.Event:
        if self.hits(0.5):
            return self.arrival()
        at = self.next()
        kinds = (
            *(events.WorkflowPaused(at=at), events.WorkflowPaused(at=at), events.WorkflowPaused(at=at, tree=True)),
            *(events.WorkflowResumed(at=at), events.WorkflowResumed(at=at), events.WorkflowResumed(at=at)),
            *(events.WorkflowBegun(at=at), events.CancelRequested(at=at)),
            *(events.WorkflowTerminated(reason=f"{at}"), self.child_answer(), self.child_answer()),
        )
        return self.choice(kinds)

    def child_answer(self) -> events.ChildCompleted:
        return events.ChildCompleted(ref=self.next(), child="{1}")

    def settlement(self) -> events.PromiseResolved:
        return events.PromiseResolved(ref=0, value=Raw(b"%d" % self.next()))

    def details(self, share: float = 0.5) -> Raw | None:
        return Raw(b"%d" % self.next()) if self.hits(share) else None

    def failure(self) -> events.Failure:
        return events.Failure(type="E", message="no")

    def result(self, ref: int, attempt: int) -> events.ActivityCompleted | events.ActivityRetryScheduled:
        if self.hits(0.6):
            return events.ActivityCompleted(ref=ref, at=self.next(), attempt=attempt)
        later = self.clock.now() + self.choice((0, 50))
        return events.ActivityRetryScheduled(
            ref=ref, at=self.next(), attempt=attempt, next_at=later, failure=self.failure()
        )

    # Outcomes.

    def activity(self, ref: int) -> ActivityRequest:
        queue = self.choice(QUEUES)
        starts = WorkStarted(item=ref, step=f"s{self.next()}") if self.hits(0.4) else None
        return ActivityRequest(
            ref=ref, name="n", queue=queue, input=Raw(b"1"), entity_id="i", timeout=ref, starts=starts
        )

    def outcome(self, instance: r.Instance, seq: int, before: Status) -> Outcome:
        """Return what an advance from *seq* may come to; one that has ended only completes its log."""
        status = before if before.terminal else self.status()
        closing = status.terminal and not before.terminal
        refs = [] if status.terminal else [seq + 1 + n for n in self.many(0, 0, 1, 2)]
        log = [scheduled(ref) for ref in refs]
        if closing or status is Status.DIVERGED:
            log.append(self.closing_entry(seq + len(log) + 1, status))
        return Outcome(
            events=tuple(log),
            forgotten=tuple(
                Forgotten(self.below(2, seq + len(log) + 2), self.choice(LOCATIONS)) for _ in self.many(0, 0, 0, 1, 2)
            ),
            dropped=tuple(Span(LOCATIONS[1], Location((3,))) for _ in self.many(0, 0, 0, 0, 1)),
            activities=tuple(map(self.activity, refs)),
            withdrawals=tuple(self.withdrawal(seq) for _ in self.many(0, 0, 1)),
            promises=tuple(self.promise(instance, n) for n in range(3) if self.hits(0.2)),
            closed=tuple(promise_of(instance, n) for n in range(3) if self.hits(0.1)),
            **self.effects(instance),
            successor=self.successor(instance) if closing and status is Status.CONTINUED else None,
            strict=self.hits(0.3),
            status=status,
            deactivated=status.terminal and self.hits(0.5),
            diagnosis="no" if status is Status.DIVERGED else None,
            failure=self.choice(("E", "F")) if closing and status is Status.FAILED else None,
            wake_at=self.clock.now() + self.choice((0, 70)) if self.hits(0.4) else None,
            signal_schemas=self.choice((None, None, None, *SCHEMAS)),
            tags=self.choice(LATER_TAGS) if self.hits(0.2) else None,
        )

    def first(self) -> Outcome:
        """Return the outcome of a first advance."""
        refs = [2 + n for n in self.many(0, 1, 2)]
        return Outcome(
            events=tuple(map(scheduled, refs)),
            activities=tuple(map(self.activity, refs)),
            wake_at=self.clock.now() + 70 if self.hits(0.4) else None,
            signal_schemas=self.choice((None, *SCHEMAS)),
            tags=self.choice(LATER_TAGS) if self.hits(0.2) else None,
        )

    def status(self) -> Status:
        kinds = (Status.RUNNING, Status.COMPLETED, Status.FAILED, Status.CONTINUED, Status.DIVERGED, Status.SCHEDULED)
        return self.random.choices(kinds, (10, 1, 1, 2, 1, 1))[0]

    def closing_entry(self, seq: int, status: Status) -> events.Event:
        match status:
            case Status.FAILED:
                return events.WorkflowFailed(seq=seq, failure=self.failure())
            case Status.CONTINUED:
                return events.WorkflowContinued(seq=seq, run_id="next", execution_id="next")
            case Status.DIVERGED:
                return events.WorkflowDiverged(seq=seq, diagnosis="no")
            case _:
                return events.WorkflowCompleted(seq=seq, result=Raw(b"1"))

    def effects(self, instance: r.Instance) -> dict[str, tuple[object, ...]]:
        return {
            "children": tuple(self.child(instance) for _ in self.many(0, 0, 0, 1, 2)),
            "messages": tuple(self.message() for _ in self.many(0, 0, 0, 1, 2, 3)),
            "publications": tuple(self.publication() for _ in self.many(0, 1)),
        }

    def publication(self) -> Publication:
        return Publication(self.choice(TOPICS), Raw(b"%d" % self.next()))

    def note_published(self, publications: Iterable[Publication]) -> None:
        """Note messages that were committed."""
        for one in publications:
            self.published[one.topic, bytes(one.value)] = self.clock.now()

    def is_settled(self, topic: str, value: bytes) -> bool:
        """Whether a message must be there still, or must be gone: a later one of its topic takes those that are too old."""
        published_at = self.published[topic, value]
        last = max(at for (name, _), at in self.published.items() if name == topic)
        return published_at >= self.clock.now() - MESSAGES_KEPT or published_at < last - MESSAGES_KEPT

    def promise(self, instance: r.Instance, number: int) -> OpenPromise:
        schema = Raw(self.choice((b"null", b'{"type":"integer"}')))
        return OpenPromise(promise_of(instance, number), self.choice(NAMES), schema)

    def withdrawal(self, seq: int) -> Withdrawal:
        ref = self.below(2, seq + 2)
        entry = events.ActivityCancelled(ref=ref, at=self.next()) if self.hits(0.7) else None
        return Withdrawal(ref, answered=self.hits(0.3), entry=entry, never_started=self.hits(0.5))

    def child(self, instance: r.Instance) -> ChildRequest:
        run_id = f"child-run-{self.below(4)}"
        parent = events.Parent(
            entity_id=instance.entity_id,
            run_id=instance.run_id,
            execution_id=instance.execution_id,
            location=Location((1,)),
            key=self.choice("kl"),
            first_run=run_id,
        )
        started = self.started(self.choice(CHILDREN), run_id=run_id, parent=parent)
        ref = self.next()
        created = events.ChildStarted(ref=ref, execution_id=started.execution_id)
        return ChildRequest(
            started=started, created=created, refused=events.ChildFailed(ref=ref, failure=self.failure())
        )

    def message(self) -> Message:
        ref = self.next()
        told = {
            "delivered": events.SignalDelivered(ref=ref),
            "missing": events.SignalFailed(ref=ref, failure=events.Failure(type="E", message="missing")),
            "ended": events.SignalFailed(ref=ref, failure=events.Failure(type="E", message="ended")),
        }
        told = {name: event for name, event in told.items() if self.hits(0.8)}
        if self.hits(0.3):
            return Message(event=self.settlement(), promise_id=self.promise_id(), **told)
        kept = self.hits(0.3)
        return Message(
            event=self.child_answer() if kept else self.event(),
            entity_id=self.choice((*ENTITIES, *CHILDREN, "unknown")),
            run_id=f"r-{self.below(self.number + 1)}" if self.hits(0.2) else None,
            key=self.choice("kl") if self.hits(0.2) else None,
            kept=kept,
            **told,
        )

    def successor(self, instance: r.Instance) -> Succession:
        retried = {"run_id": instance.run_id, "attempt": instance.attempt + 1}
        continued = {"run_id": f"r-new-{self.next()}"}
        following = retried if self.hits(0.5) else continued
        return Succession(
            started=self.started(instance.entity_id, parent=instance.parent, **following),
            inbox=self.arrivals(0, 1),
            moves=("signal_received", "cancel_requested", "promise_resolved"),
        )


def promise_of(instance: r.Instance, number: int) -> str:
    """Return the id of a promise, which every attempt of a run makes again."""
    return routed(f"{instance.run_id}-p-{number}", instance.entity_id)


def scheduled(ref: int) -> events.ActivityScheduled:
    return events.ActivityScheduled(seq=ref, location=Location((ref,)), command="Task(0)", name="n", queue="x")
