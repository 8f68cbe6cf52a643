"""The memory store is the oracle: whatever is done to both, SQLite answers the same and comes to hold the same.

Each run is a random story over a few entities, told to both stores step by step. What they may differ in is left out:
the ids of inbox entries, the values of wake counters, the order of claims, and the wording of refusals.
"""

import asyncio
import random
from dataclasses import dataclass, field
from operator import attrgetter

import msgspec
import pytest
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.location import Location
from resurgam.core.outcome import (
    ActivityRequest,
    ChildRequest,
    Message,
    OpenPromise,
    Outcome,
    Publication,
    Succession,
    Withdrawal,
)
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.memory.store import MemoryStore
from resurgam.store.sqlite.store import SqliteStore
from resurgam.testing import ManualClock

LEASE = 10_000
ENTITIES = ("a", "b", "c", "d")
QUEUES = ("x", "y")
WORKERS = ("first", "second")
STEPS = 150


@dataclass
class Hold:
    """A lease as one store gave it, current or lost."""

    claim: r.Claim
    wake: int
    seq: int
    inbox: list[int]
    status: Status
    running: dict[int, ActivityRequest] = field(default_factory=dict)


@dataclass
class Side:
    """One of the two stores, with its own names for what both have."""

    store: object
    holds: list[Hold] = field(default_factory=list)

    def __getattr__(self, name):
        return getattr(self.store, name)


class Story:
    """Tells both stores the same, and compares what they say."""

    def __init__(self, seed, memory, sqlite, clock):
        self.random = random.Random(seed)
        self.sides = (Side(memory), Side(sqlite))
        self.clock = clock
        self.number = 0
        self.entities = {}
        self.tasks = []

    async def step(self):
        verbs = (
            *(self.create, self.deliver, self.claim, self.commit, self.commit, self.commit, self.commit, self.release),
            *(self.extend, self.work, self.finish, self.wait, self.ask, self.answer, self.purge, self.revive),
        )
        verb = self.random.choice(verbs)
        await verb()
        await self.compare(verb.__name__)

    # What both are told.

    async def both(self, verb, *arguments):
        answers = [await attrgetter(verb)(side.store)(*arguments) for side in self.sides]
        plain = [[normal(part) for part in answer] for answer in answers]
        assert plain[0] == plain[1], (verb, arguments)
        return answers

    async def create(self):
        part = r.Creation(
            started=self.started(self.random.choice(ENTITIES)),
            attach=self.chance(0.2),
            replace=events.WorkflowTerminated(reason="replaced") if self.chance(0.2) else None,
            inbox=tuple(self.arrival() for _ in range(self.random.choice((0, 0, 1, 2)))),
            follows=self.some_execution() if self.chance(0.2) else None,
            offer=self.offer(),
        )
        if self.chance(0.5):
            part = msgspec.structs.replace(part, first=self.first(part.started))
        answers = await self.both("create", [part])
        self.note([getattr(answer[0], "claim", None) for answer in answers])
        committed = getattr(answers[0][0], "committed", None)
        if committed is not None:
            for side, answer in zip(self.sides, answers, strict=True):
                hold, done = side.holds[-1], answer[0].committed
                hold.wake, hold.seq = done.wake, 1 + len(part.first.outcome.events)
                hold.inbox += [entry.id for entry in done.inbox]
            self.claimed(-1, committed.tasks)

    def first(self, started):
        refs = [2 + n for n in range(self.random.choice((0, 1, 2)))]
        outcome = Outcome(
            events=tuple(scheduled(ref) for ref in refs),
            activities=tuple(self.wanted(ref) for ref in refs),
            wake_at=self.clock.now() + 70 if self.chance(0.4) else None,
        )
        return r.Commit(
            entity_id=started.entity_id,
            execution_id=started.execution_id,
            epoch=1,
            base_seq=1,
            wake=0,
            outcome=outcome,
            worker="first",
            release=self.chance(0.6),
            eager=frozenset(refs[self.random.choice((0, 1)) :]),
            covers=self.chance(0.7),
        )

    def claimed(self, index, tasks):
        """Note what a commit has claimed: with a lease of its own, or covered by that of its instance."""
        self.tasks += tasks
        for side in self.sides:
            side.holds[index].running |= {task.request.ref: task.request for task in tasks if task.epoch == 0}

    def forget(self, execution_id, ref):
        """Note that an activity is answered, or has a row."""
        for side in self.sides:
            for hold in side.holds:
                if hold.claim.instance.execution_id == execution_id:
                    hold.running.pop(ref, None)

    async def deliver(self):
        part = r.Delivery(event=self.event(), entity_id=self.random.choice((*ENTITIES, "unknown")), offer=self.offer())
        kind = self.random.random()
        if kind < 0.2:
            part = msgspec.structs.replace(part, execution_id=self.some_execution())
        elif kind < 0.35:
            part = msgspec.structs.replace(part, event=self.settlement(), promise_id=self.promise())
        elif kind < 0.45:
            part = msgspec.structs.replace(part, event=self.settlement(), promise=self.random.choice("mn"))
        if part.promise_id is not None or part.promise is not None:
            held = [await side.store.inspector.promise(part) for side in self.sides]
            assert held[0] == held[1], part
        answers = await self.both("deliver", [part])
        self.note([getattr(answer[0], "claim", None) for answer in answers])

    async def claim(self):
        worker, queues = self.random.choice(WORKERS), self.random.choice((("x",), ("x", "y")))
        answers = [await side.store.claim(worker, queues, 1000) for side in self.sides]
        found = [{claim.instance.execution_id: claim for claim in answer} for answer in answers]
        plain = [{name: normal(claim) for name, claim in claims.items()} for claims in found]
        assert plain[0] == plain[1]
        for execution_id in found[0]:
            self.note([claims[execution_id] for claims in found])

    async def commit(self):
        if not self.sides[0].holds:
            return
        index = self.random.choice((self.random.randrange(len(self.sides[0].holds)), -1))
        outcome, fields = self.outcome(self.sides[0].holds[index])
        outcome, covering = self.covering(self.sides[0].holds[index], outcome)
        fields |= covering
        taken = [n for n, _ in enumerate(self.sides[0].holds[index].inbox) if self.chance(0.6)]
        answers = []
        for side in self.sides:
            hold = side.holds[index]
            consumed = tuple(hold.inbox[n] for n in taken)
            part = r.Commit(
                execution_id=hold.claim.instance.execution_id,
                entity_id=hold.claim.instance.entity_id,
                epoch=hold.claim.epoch,
                base_seq=hold.seq,
                wake=hold.wake,
                outcome=msgspec.structs.replace(outcome, consumed=consumed),
                **fields,
            )
            if self.number % 2:
                [answer] = await side.store.commit([part])
            else:
                told = asyncio.get_running_loop().create_future()
                side.store.submit(part, told.set_result)
                answer = await told
            if isinstance(answer, r.Committed):
                hold.running = {request.ref: request for request in part.running}
                left = [key for key in hold.inbox if key not in consumed]
                hold.inbox = left + [entry.id for entry in answer.inbox]
                hold.wake, hold.seq = answer.wake, hold.seq + len(outcome.events)
                hold.status = outcome.status
            answers.append(answer)
        assert normal(answers[0]) == normal(answers[1]), (outcome, fields)
        self.claimed(index, getattr(answers[0], "tasks", ()))
        for withdrawal in outcome.withdrawals if isinstance(answers[0], r.Committed) else ():
            self.forget(self.sides[0].holds[index].claim.instance.execution_id, withdrawal.ref)

    def covering(self, hold, outcome):
        """Return what a commit says of the activities that the lease has covered, with their answers in the outcome."""
        running, log, retries = dict(hold.running), list(outcome.events), []
        seq = hold.seq + len(log)
        for ref, request in hold.running.items():
            if self.chance(0.4):
                del running[ref]
                seq += 1
                if self.chance(0.7):
                    log.append(events.ActivityCompleted(seq=seq, ref=ref))
                    continue
                failure, moment = events.Failure(type="E", message="no"), self.clock.now() + 50
                again = {"attempt": 1, "next_at": moment, "failure": failure}
                log.append(events.ActivityRetryScheduled(seq=seq, ref=ref, **again))
                details = Raw(b"%d" % self.next()) if self.chance(0.5) else None
                retries.append(r.Pending(request=request, visible_at=moment, attempt=2, details=details))
        covering = {"covers": self.chance(0.7), "running": tuple(running.values()), "retries": tuple(retries)}
        return msgspec.structs.replace(outcome, events=tuple(log)), covering

    async def release(self):
        if self.sides[0].holds:
            index = self.random.randrange(len(self.sides[0].holds))
            failed = "no" if self.chance(0.3) else None
            final = failed is not None and self.chance(0.3)
            answers = [
                await side.store.release([r.Release(lease=lease(side.holds[index]), failed=failed, final=final)])
                for side in self.sides
            ]
            assert normal(answers[0][0]) == normal(answers[1][0])

    async def extend(self):
        if self.sides[0].holds and self.chance(0.5):
            index = self.random.randrange(len(self.sides[0].holds))
            answers = []
            for side in self.sides:
                hold = side.holds[index]
                [answer] = await side.store.extend([lease(hold)])
                if isinstance(answer, r.Extended):
                    hold.wake = answer.wake
                    hold.inbox += [entry.id for entry in answer.inbox]
                answers.append(answer)
            assert normal(answers[0]) == normal(answers[1])
        elif self.tasks:
            task = self.random.choice(self.tasks)
            details = Raw(b"%d" % self.next()) if self.chance(0.5) else None
            part = r.Lease(
                entity_id=task.entity_id,
                execution_id=task.execution_id,
                epoch=task.epoch,
                ref=task.request.ref,
                details=details,
            )
            heartbeat_at = self.clock.now() if self.chance(0.5) else None
            await self.both("extend", [msgspec.structs.replace(part, heartbeat_at=heartbeat_at)])
            self.forget(task.execution_id, task.request.ref)

    async def work(self):
        answers = [await side.store.claim_activities("first", QUEUES, 1000) for side in self.sides]
        found = [{(task.execution_id, task.request.ref): task for task in answer} for answer in answers]
        assert found[0] == found[1]
        self.tasks += answers[0]

    async def finish(self):
        if self.tasks:
            task = self.random.choice(self.tasks)
            failure = events.Failure(type="E", message="no")
            event = self.random.choice(
                (
                    events.ActivityCompleted(ref=task.request.ref),
                    events.ActivityRetryScheduled(
                        ref=task.request.ref, attempt=1, next_at=self.clock.now() + 50, failure=failure
                    ),
                )
            )
            details = Raw(b"%d" % self.next()) if self.chance(0.3) else None
            part = r.ActivityResult(
                entity_id=task.entity_id, execution_id=task.execution_id, epoch=task.epoch, event=event, details=details
            )
            await self.both("complete_activities", [part])
            self.forget(task.execution_id, task.request.ref)

    async def wait(self):
        self.clock.move_to(self.clock.now() + self.random.choice((1, 100, 100, LEASE)))

    async def ask(self):
        about = self.some_ref()
        task = r.QueryTask(
            query_id=f"q-{self.random.randrange(5)}",
            entity_id=about.entity_id,
            execution_id=about.execution_id,
            queue=self.random.choice(QUEUES),
            name="q",
            input=Raw(b"1"),
            until=self.clock.now() + 1000,
        )
        await self.both("queries.submit", [task])
        if self.chance(0.5):
            await self.both("queries.claim", "first", QUEUES, 2)

    async def answer(self):
        reply = r.QueryResult(query_id=f"q-{self.random.randrange(5)}", result=Raw(b"%d" % self.next()))
        for side in self.sides:
            await side.store.queries.complete([reply])

    async def purge(self):
        if self.chance(0.3):
            await self.both("purge", [self.some_ref()])

    async def revive(self):
        await self.both("revive", [self.some_ref()])

    # What they are compared by.

    async def compare(self, what):
        for entity in (*ENTITIES, "child-0", "child-1"):
            copies = [await side.store.transfer.copies(entity) for side in self.sides]
            assert copies[0] == copies[1], what
        for query in (
            r.Query(),
            r.Query(status=Status.PAUSED),
            r.Query(status=Status.SCHEDULED),
            r.Query(parent="a", limit=2),
            r.Query(newest_only=True, limit=3),
            r.Query(newest_only=True, status=Status.RUNNING, until=self.clock.now()),
            r.Query(failure="E"),
            r.Query(tree_id="tree", status=Status.RUNNING),
        ):
            pages = [await side.store.inspector.list(query) for side in self.sides]
            assert pages[0] == pages[1], what
        for ended in (
            r.EndedQuery(before=2**62),
            r.EndedQuery(before=self.clock.now(), limit=2, after=(self.clock.now() - 10_000, "e")),
            r.EndedQuery(before=2**62, status=Status.FAILED, name="n"),
        ):
            found = [await side.store.inspector.ended(ended) for side in self.sides]
            assert found[0] == found[1], what
        for execution in (self.some_ref() for _ in range(3)):
            work = [shown(await side.store.inspector.open_work(execution)) for side in self.sides]
            assert work[0] == work[1], (what, execution)
        stats = [await side.store.inspector.stats() for side in self.sides]
        for name in ("instances", "dead_instances", "dead_activities"):
            assert getattr(stats[0], name) == getattr(stats[1], name), what
        for number in range(5):
            replies = [await side.store.queries.result(f"q-{number}") for side in self.sides]
            assert replies[0] == replies[1], what
        topics = [await side.store.inspector.messages("t", "") for side in self.sides]
        assert topics[0].values == topics[1].values, what
        for kind in ("instances", "activities", "queries"):
            wanted = {name: name == kind for name in ("instances", "activities", "queries")}
            watch = r.Work(worker="first", queues=QUEUES, **wanted)
            there = [await side.store.wait(watch, 0) for side in self.sides]
            assert there[0] == there[1], (what, kind)

    # Chance.

    def chance(self, share):
        return self.random.random() < share

    def next(self):
        self.number += 1
        return self.number

    def offer(self):
        return r.EagerOffer(worker="first", queues=("x",)) if self.chance(0.3) else None

    def some_ref(self):
        execution_id = self.some_execution()
        return r.ExecutionRef(entity_id=self.entities.get(execution_id, "unknown"), execution_id=execution_id)

    def some_execution(self):
        return f"e-{self.random.randrange(self.number + 1)}"

    def started(self, entity, **fields):
        number = self.next()
        self.entities[f"e-{number}"] = entity
        later = self.random.choice(({}, {}, {"begins_at": self.clock.now() + 100}, {"deferred": True}))
        run = self.random.choice((number, number, self.random.randrange(number + 1)))
        tree = self.random.choice(("tree", f"r-{run}"))
        return events.WorkflowStarted(
            seq=1,
            at=self.clock.now(),
            name="n",
            python="3.11",
            entity_id=entity,
            tree_id=tree,
            **{"execution_id": f"e-{number}", "queue": self.random.choice(QUEUES), **later},
            **{"run_id": f"r-{run}", "attempt": self.random.choice((1, 1, 2)), **fields},
        )

    def arrival(self):
        signal = events.SignalReceived(name="s", id=f"{self.next()}", at=1)
        return signal if self.chance(0.7) else events.CancelRequested()

    def event(self):
        kinds = (
            *(events.WorkflowPaused(), events.WorkflowPaused(tree=True), events.WorkflowResumed()),
            *(events.WorkflowResumed(), events.WorkflowBegun(), events.CancelRequested(), events.WorkflowTerminated()),
        )
        return self.arrival() if self.chance(0.5) else self.random.choice(kinds)

    def promise(self):
        return f"{self.random.choice(ENTITIES)}-{self.random.randrange(3)}"

    def schema(self):
        return Raw(self.random.choice((b"null", b'{"type":"integer"}')))

    def settlement(self):
        return events.PromiseResolved(ref=0, value=Raw(b"%d" % self.next()))

    def outcome(self, hold):
        instance = hold.claim.instance
        refs = [hold.seq + 1 + n for n in range(self.random.choice((0, 0, 1, 2)))]
        fields = {
            "worker": self.random.choice(WORKERS),
            "release": self.chance(0.4),
            "eager": frozenset(refs[self.random.choice((0, 1)) :]),
        }
        status = self.random.choices(
            (Status.RUNNING, Status.COMPLETED, Status.FAILED, Status.CONTINUED, Status.DIVERGED, Status.SCHEDULED),
            (10, 1, 1, 2, 1, 1),
        )[0]
        # What has ended does not go on: its later commits only complete the log.
        status = hold.status if hold.status.terminal else status
        goes_on = status is Status.CONTINUED and not hold.status.terminal
        refs = [] if status.terminal else refs
        return Outcome(
            events=tuple(scheduled(ref) for ref in refs),
            activities=tuple(self.wanted(ref) for ref in refs),
            withdrawals=tuple(self.withdrawal(hold) for _ in range(self.random.choice((0, 0, 1)))),
            promises=tuple(
                OpenPromise(f"{instance.entity_id}-{n}", self.random.choice("mn"), self.schema())
                for n in range(3)
                if self.chance(0.2)
            ),
            closed=tuple(f"{instance.entity_id}-{n}" for n in range(3) if self.chance(0.1)),
            children=tuple(self.request(instance) for _ in range(self.random.choice((0, 0, 0, 1, 2)))),
            messages=tuple(self.message() for _ in range(self.random.choice((0, 0, 0, 1, 2)))),
            publications=tuple(Publication(self.random.choice("tu"), Raw(b"%d" % self.next())) for _ in range(1)),
            successor=self.successor(instance) if goes_on else None,
            strict=self.chance(0.2),
            status=status,
            deactivated=status.terminal and self.chance(0.5),
            diagnosis="no" if status is Status.DIVERGED else None,
            failure=self.random.choice(("E", "F")) if status is Status.FAILED and not hold.status.terminal else None,
            wake_at=self.clock.now() + 70 if self.chance(0.4) else None,
        ), fields

    def wanted(self, ref):
        queue = self.random.choice(QUEUES)
        return ActivityRequest(ref=ref, name="n", queue=queue, input=Raw(b"1"), entity_id="i", timeout=ref)

    def withdrawal(self, hold):
        ref = self.random.randrange(2, hold.seq + 2)
        entry = events.ActivityCancelled(ref=ref) if self.chance(0.7) else None
        return Withdrawal(ref, answered=self.chance(0.3), entry=entry, never_started=self.chance(0.5))

    def request(self, instance):
        run_id = f"child-run-{self.random.randrange(4)}"
        parent = events.Parent(
            entity_id=instance.entity_id,
            run_id=instance.run_id,
            execution_id=instance.execution_id,
            location=Location((1,)),
            key=self.random.choice("kl"),
            first_run=run_id,
        )
        started = self.started(self.random.choice(("child-0", "child-1")), run_id=run_id, parent=parent)
        created = events.ChildStarted(ref=2, execution_id=started.execution_id)
        failure = events.Failure(type="E", message="taken")
        return ChildRequest(started=started, created=created, refused=events.ChildFailed(ref=2, failure=failure))

    def message(self):
        told = {
            "delivered": events.SignalDelivered(ref=2),
            "missing": events.SignalFailed(ref=2, failure=events.Failure(type="E", message="missing")),
            "ended": events.SignalFailed(ref=2, failure=events.Failure(type="E", message="ended")),
        }
        told = {name: event for name, event in told.items() if self.chance(0.8)}
        if self.chance(0.3):
            return Message(event=self.settlement(), promise_id=self.promise(), kept=self.chance(0.2), **told)
        return Message(
            event=self.event(),
            entity_id=self.random.choice((*ENTITIES, "child-0", "child-1", "unknown")),
            run_id=f"r-{self.random.randrange(self.number + 1)}" if self.chance(0.2) else None,
            key=self.random.choice("kl") if self.chance(0.2) else None,
            kept=self.chance(0.3),
            **told,
        )

    def successor(self, instance):
        same = {"run_id": instance.run_id, "attempt": instance.attempt + 1}
        other = {"run_id": f"r-new-{self.next()}", "parent": instance.parent}
        return Succession(
            started=self.started(instance.entity_id, **(same if self.chance(0.5) else other)),
            inbox=tuple(self.arrival() for _ in range(self.random.choice((0, 1)))),
            moves=("signal_received", "cancel_requested", "promise_resolved"),
        )

    def note(self, claims):
        if claims[0] is not None:
            for side, claim in zip(self.sides, claims, strict=True):
                inbox = [entry.id for entry in claim.inbox]
                side.holds.append(Hold(claim, claim.wake, claim.instance.last_seq, inbox, claim.instance.status))


def scheduled(ref):
    return events.ActivityScheduled(seq=ref, location=Location((ref,)), command="Task(0)", name="n", queue="x")


def lease(hold):
    return r.Lease(
        entity_id=hold.claim.instance.entity_id,
        execution_id=hold.claim.instance.execution_id,
        epoch=hold.claim.epoch,
        wake=hold.wake,
    )


def normal(answer):
    """Return an answer without what the stores may differ in."""
    if isinstance(answer, r.Refused):
        return answer if answer.reason == r.INBOX_CHANGED else r.Refused(reason="")
    found = msgspec.structs.asdict(answer)
    found.pop("wake", None)
    if "inbox" in found:
        found["inbox"] = [entry.event for entry in found["inbox"]]
    for part in ("claim", "committed"):
        if found.get(part) is not None:
            found[part] = normal(found[part])
    return type(answer).__name__, found


def shown(work):
    """Return open work without the names of workers, which one store takes from the claim and the other from itself."""
    if work is None:
        return None
    activities = tuple(msgspec.structs.replace(one, worker=one.worker and "held") for one in work.activities)
    return msgspec.structs.replace(work, activities=activities, worker=work.worker and "held")


async def tell(seed):
    clock = ManualClock()
    memory = MemoryStore(clock, lease=LEASE)
    sqlite = SqliteStore(None, clock, name="agreement", lease=LEASE, synchronous="OFF")
    story = Story(seed, memory, sqlite, clock)
    try:
        for _ in range(STEPS):
            await story.step()
    finally:
        await sqlite.close()


@pytest.mark.parametrize("seed", range(20))
async def test_both_stores_tell_the_same_story(seed):
    await tell(seed)
