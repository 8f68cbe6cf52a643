"""A random story: the verbs of several workers, told to both stores step by step."""

import asyncio
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from resurgam.core import event as events
from resurgam.core.outcome import Outcome
from resurgam.store import records as r
from resurgam.store.protocol import Store
from resurgam.store.rules import MESSAGES_KEPT, REDELIVERIES
from resurgam.testing.contract import LEASE
from support.agreement.chance import CHILDREN, ENTITIES, NAMES, QUEUES, SCHEMAS, TOPICS, Chance
from support.agreement.comparison import Comparison
from support.agreement.coverage import Coverage
from support.agreement.difference import assert_same
from support.agreement.sides import Hold, Normal, Side, View, by_event, pairs

WORKERS = ("first", "second")
HOLDS = 12
"""How many leases, held or lost, are remembered: the older ones are refused in any case."""

Task = tuple[str, r.ActivityTask]
"""A worker, and an activity that it has claimed."""


class Story:
    """Tells both stores the same, and compares what they say and what they hold."""

    compared_every = 4
    """After so many steps everything is compared that can be read, after the others only the executions."""

    def __init__(
        self, sides: Sequence[Side], chance: Chance, normal: Normal, coverage: Coverage, *, moves: bool = False
    ) -> None:
        self.sides = sides
        self.chance = chance
        self.normal = normal
        self.coverage = coverage
        self.comparison = Comparison(sides, chance, normal, coverage)
        self.steps = 0
        self.holds: list[Hold] = []
        self.tasks: list[Task] = []
        self.copies: dict[str, tuple[r.Copy, ...]] = {}
        self.moves = moves
        self.moving: dict[str, list[tuple[r.Copy, ...]]] = {}
        self.archiving: dict[str, list[tuple[r.Copy, ...]]] = {}
        often = (self.commit, self.commit, self.commit, self.deliver, self.claim, self.extend, self.finish)
        rarely = (self.ask, self.answer, self.purge, self.revive, self.adopt, self.use_values, self.announce, self.look)
        if moves:
            rarely = (*rarely, *[self.remove] * 4, *[self.adopt] * 2, *[self.reserve] * 2, *[self.archive] * 4)
        self.verbs = (*often * 3, *(self.create, self.work, self.release, self.pass_time) * 2, *rarely)

    async def begin(self) -> None:
        """Create an execution of each entity, so that the story has somebody to be about."""
        parts = [r.Creation(started=self.chance.started(entity_id)) for entity_id in ENTITIES]
        await self.tell(WORKERS[0], "create", *parts)
        await self.comparison.compare(())

    async def step(self) -> None:
        """Use a verb of both stores; compare its answers and all executions, now and then also all other reads."""
        verb = self.exhaust if self.chance.hits(0.005) else self.chance.choice(self.verbs)
        await verb(self.chance.choice(WORKERS))
        for side in self.sides:
            await side.settle()
        self.steps += 1
        await self.comparison.compare(self.holds if self.steps % self.compared_every == 0 else None)

    async def tell(self, worker: str, verb: str, *parts: Any, each: Callable[[int], Any] | None = None) -> list[Any]:
        """Call a verb of both stores with a batch, which *each* makes for a side; return the answers of both."""
        answers = []
        for number, side in enumerate(self.sides):
            batch = list(parts) if each is None else each(number)
            answers.append(await attrgetter(verb)(side.stores[worker])(batch))
        self.agree(verb, answers)
        return answers

    def agree(self, verb: str, answers: Sequence[Sequence[Any]]) -> None:
        for ours, theirs in pairs(answers):
            assert_same(self.normal.answer(ours), self.normal.answer(theirs), verb)
            self.coverage.note_answer(verb, ours)

    # Instances.

    async def create(self, worker: str) -> None:
        parts = [self.creation(worker) for _ in self.chance.many(1, 1, 2)]
        for part, (ours, theirs) in zip(parts, pairs(await self.tell(worker, "create", *parts)), strict=True):
            if isinstance(ours, r.Created) and ours.claim is not None:
                hold = self.note(worker, ours.claim, theirs.claim)
                if ours.committed is not None:
                    assert part.first is not None
                    self.committed(hold, part.first.outcome, (ours.committed, theirs.committed))

    def creation(self, worker: str) -> r.Creation:
        chance = self.chance
        started = chance.started(chance.choice(ENTITIES))
        first = r.Commit(
            entity_id=started.entity_id,
            execution_id=started.execution_id,
            epoch=1,
            base_seq=1,
            wake=0,
            outcome=chance.first(),
            worker=worker,
            release=chance.hits(0.6),
            covers=chance.hits(0.7),
        )
        refs = [request.ref for request in first.outcome.activities]
        first = replace(first, eager=frozenset(refs[chance.choice((0, 1)) :]))
        return r.Creation(
            started=started,
            attach=chance.hits(0.2),
            replace=events.WorkflowTerminated(reason="replaced") if chance.hits(0.2) else None,
            inbox=chance.arrivals(0, 0, 1, 2),
            follows=chance.some_execution() if chance.hits(0.2) else None,
            offer=chance.offer(worker),
            first=first if chance.hits(0.5) else None,
        )

    async def deliver(self, worker: str) -> None:
        parts = [self.delivery(worker) for _ in self.chance.many(1, 1, 2, 3)]
        for ours, theirs in pairs(await self.tell(worker, "deliver", *parts)):
            if isinstance(ours, r.Delivered) and ours.claim is not None:
                self.note(worker, ours.claim, theirs.claim)

    def delivery(self, worker: str) -> r.Delivery:
        chance = self.chance
        part = r.Delivery(
            event=chance.event(), entity_id=chance.choice((*ENTITIES, "unknown")), offer=chance.offer(worker)
        )
        kind = chance.random.random()
        if kind < 0.2:
            ref = chance.some_ref()
            return replace(part, entity_id=ref.entity_id, execution_id=ref.execution_id)
        if kind < 0.35:
            return replace(part, event=chance.settlement(), entity_id="", promise_id=chance.promise_id())
        if kind < 0.5:
            return replace(part, event=chance.settlement(), promise=chance.choice(NAMES))
        return replace(part, event=chance.signal(), schemas=chance.choice(SCHEMAS)) if kind < 0.6 else part

    async def claim(self, worker: str) -> list[Hold]:
        queues = self.chance.choice((("x",), QUEUES))
        answers = [await _claim_all(side.stores[worker], worker, queues) for side in self.sides]
        self.coverage.note("claim", "claims" if answers[0] else "nothing")
        found = [{claim.instance.execution_id: claim for claim in answer} for answer in answers]
        assert_same(sorted(found[0]), sorted(found[1]), "claim")
        claims = [(ours, found[1][execution_id]) for execution_id, ours in found[0].items()]
        for ours, theirs in claims:
            assert_same(self.normal.answer(ours), self.normal.answer(theirs), "claim")
        for _, theirs in claims:
            if theirs.log:
                assert list(theirs.log) == list(await self.sides[1].stores[worker].read(theirs.instance))
        return [self.note(worker, *claim) for claim in claims]

    def note(self, worker: str, ours: r.Claim, theirs: r.Claim) -> Hold:
        views = View(ours.wake, list(ours.inbox)), View(theirs.wake, list(theirs.inbox))
        hold = Hold(worker, ours, ours.instance.last_seq, ours.instance.status, views)
        self.holds = [*self.holds[-HOLDS:], hold]
        return hold

    # Commits.

    async def commit(self, _: str) -> None:
        if not self.holds:
            return
        hold = self.chance.choice((self.chance.choice(self.holds), *self.holds[-4:]))
        others = [one for one in self.holds if one.worker == hold.worker and one.instance != hold.instance]
        holds = [hold, *(self.chance.random.sample(others, 1) if others and self.chance.hits(0.2) else ())]
        # Of a batch one commit has effects: those of several would cross each other on their ways between partitions.
        parts = [self.commit_of(hold, effects=number == 0) for number, hold in enumerate(holds)]
        if len(parts) == 1 and self.chance.hits(0.5):
            answers = await self.submit(hold.worker, parts[0])
        else:
            answers = await self.tell(hold.worker, "commit", each=lambda number: [made[number] for made in parts])
        for one, made, both in zip(holds, parts, pairs(answers), strict=True):
            if isinstance(both[0], r.Committed):
                self.committed(one, made[0].outcome, both, made)

    async def submit(self, worker: str, made: Sequence[r.Commit]) -> list[Any]:
        """Submit the commit that is made for each side; return the answers of both, as `tell` does."""
        answers = []
        for side, part in zip(self.sides, made, strict=True):
            told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            side.stores[worker].submit(part, told.set_result)
            answers.append([await told])
        self.agree("commit", answers)
        return answers

    def commit_of(self, hold: Hold, *, effects: bool) -> list[r.Commit]:
        """Return a commit for each store: they differ in the ids of consumed entries and in the wake counter."""
        chance = self.chance
        outcome = chance.outcome(hold.instance, hold.seq, hold.status)
        # What has read all and waits for nothing is moved most often, and must not run where it arrives.
        rests = self.moves and outcome.deactivated
        if rests or not effects:
            outcome = replace(outcome, children=(), messages=(), publications=())
        if rests:
            outcome = replace(outcome, wake_at=None)
        refs = [request.ref for request in outcome.activities]
        outcome, covering = self.covering(hold, outcome)
        consumed = [by_event(view.inbox) for view in hold.views]
        assert consumed[0].keys() == consumed[1].keys()
        taken = [key for key in consumed[0] if chance.hits(0.6) or rests]
        part = r.Commit(
            execution_id=hold.instance.execution_id,
            entity_id=hold.instance.entity_id,
            epoch=hold.claim.epoch,
            base_seq=hold.seq if chance.hits(0.95) else hold.seq + 1,
            wake=0,
            outcome=outcome,
            worker=hold.worker,
            release=chance.hits(0.4),
            eager=frozenset(refs[chance.choice((0, 1)) :]),
            **covering,
        )
        return [
            replace(part, wake=view.wake, outcome=replace(outcome, consumed=tuple(ids[key] for key in taken)))
            for view, ids in zip(hold.views, consumed, strict=True)
        ]

    def covering(self, hold: Hold, outcome: Outcome) -> tuple[Outcome, dict[str, Any]]:
        """Return what a commit says of the activities that the lease has covered, with their answers in the outcome."""
        chance = self.chance
        running, log, retries = dict(hold.running), list(outcome.events), []
        for ref, request in hold.running.items():
            if chance.hits(0.4):
                del running[ref]
                answer = replace(chance.result(ref, 1), seq=hold.seq + len(log) + 1)
                log.append(answer)
                if isinstance(answer, events.ActivityRetryScheduled):
                    again = {"visible_at": answer.next_at, "attempt": 2, "details": chance.details()}
                    retries.append(r.Pending(request=request, **again))
        covering = {"covers": chance.hits(0.7), "running": tuple(running.values()), "retries": tuple(retries)}
        return replace(outcome, events=tuple(log)), covering

    def committed(
        self, hold: Hold, outcome: Outcome, answers: Sequence[Any], parts: Sequence[r.Commit] | None = None
    ) -> None:
        """Note what a commit has come to."""
        for number, (view, answer) in enumerate(zip(hold.views, answers, strict=True)):
            consumed = () if parts is None else parts[number].outcome.consumed
            view.inbox = [entry for entry in view.inbox if entry.id not in consumed] + list(answer.inbox)
            view.wake = answer.wake
        self.chance.note_published(outcome.publications)
        hold.seq += len(outcome.events)
        hold.status = outcome.status
        tasks = answers[0].tasks
        self.tasks += [(hold.worker, task) for task in tasks]
        running = () if parts is None else parts[0].running
        hold.running = {request.ref: request for request in running}
        hold.running |= {task.request.ref: task.request for task in tasks if task.epoch == 0}
        for withdrawal in outcome.withdrawals:
            self.forget(hold.instance.execution_id, withdrawal.ref)

    def forget(self, execution_id: str, ref: int | None) -> None:
        """Note that an activity is answered, or has a row; None is no activity."""
        for hold in self.holds:
            if hold.instance.execution_id == execution_id:
                hold.running.pop(ref or 0, None)

    # Leases.

    async def release(self, worker: str) -> None:
        failed = "no" if self.chance.hits(0.4) else None
        final = failed is not None and self.chance.hits(0.5)
        lease = self.some_lease()
        if lease is not None:
            of, each = lease
            await self.tell(
                of, "release", each=lambda number: [r.Release(lease=each(number), failed=failed, final=final)]
            )
            self.forget(each(0).execution_id, each(0).ref)

    async def extend(self, worker: str) -> None:
        lease = self.some_lease()
        if lease is None:
            return
        of, each = lease
        [both] = pairs(await self.tell(of, "extend", each=lambda number: [each(number)]))
        part = each(0)
        self.forget(part.execution_id, part.ref)
        if part.ref is None and isinstance(both[0], r.Extended):
            [hold] = [one for one in self.holds if one.lease(0) == part][:1]
            for view, answer in zip(hold.views, both, strict=True):
                view.wake = answer.wake
                view.inbox += answer.inbox

    def some_lease(self) -> tuple[str, Callable[[int], r.Lease]] | None:
        """Return a worker and one of the leases that it has or had, which differs by the side in the wake counter."""
        if self.chance.hits(0.05):
            return WORKERS[0], lambda _: r.Lease(entity_id="unknown", execution_id="e-unknown", epoch=1)
        if self.holds and (not self.tasks or self.chance.hits(0.5)):
            hold = self.chance.choice(self.holds)
            return hold.worker, hold.lease
        if not self.tasks:
            return None
        worker, task = self.chance.choice(self.tasks[-HOLDS:])
        part = r.Lease(
            entity_id=task.entity_id,
            execution_id=task.execution_id,
            epoch=task.epoch,
            ref=task.request.ref,
            details=self.chance.details(),
            heartbeat_at=self.chance.clock.now() if self.chance.hits(0.5) else None,
        )
        return worker, lambda _: part

    # Activities.

    async def work(self, worker: str) -> list[Task]:
        answers = [await side.stores[worker].claim_activities(worker, QUEUES, 1000) for side in self.sides]
        self.coverage.note("claim_activities", "claims" if answers[0] else "nothing")
        found = [{(task.execution_id, task.request.ref): task for task in answer} for answer in answers]
        assert_same(found[0], found[1], "claim_activities")
        claimed = [(worker, task) for task in answers[0]]
        self.tasks += claimed
        return claimed

    async def finish(self, _: str) -> None:
        if self.tasks:
            worker, task = self.chance.choice(self.tasks[-HOLDS:])
            part = r.ActivityResult(
                entity_id=task.entity_id,
                execution_id=task.execution_id,
                epoch=task.epoch if task.request.ref % 3 else 0,  # some are answered from outside, under no lease
                event=self.chance.result(task.request.ref, task.attempt),
                details=self.chance.details(0.3),
            )
            await self.tell(worker, "complete_activities", part)
            self.forget(task.execution_id, task.request.ref)

    async def exhaust(self, worker: str) -> None:
        """Let every claimable instance and activity be handed out so often without an answer that it is given up."""
        for _ in range(REDELIVERIES + 1):
            holds, tasks = await self.claim(worker), await self.work(worker)
            leases = [r.Lease(**_addressed(task), epoch=task.epoch, ref=task.request.ref) for _, task in tasks]
            parts = [r.Release(lease=lease, failed="again") for lease in (*(hold.lease(0) for hold in holds), *leases)]
            if parts:
                await self.tell(worker, "release", *parts)

    # Time, queries, values, workers.

    async def pass_time(self, _: str) -> None:
        self.chance.clock.move_to(
            self.chance.clock.now() + self.chance.choice((1, 100, 100, 100, 100, LEASE, LEASE, MESSAGES_KEPT + 1))
        )

    async def ask(self, worker: str) -> None:
        about = self.chance.some_ref()
        task = r.QueryTask(
            query_id=self.chance.query_id(about.entity_id),
            entity_id=about.entity_id,
            execution_id=about.execution_id,
            queue=self.chance.choice(QUEUES),
            name="q",
            input=Raw(b"1"),
            until=self.chance.clock.now() + self.chance.choice((1000, 100_000)),
        )
        await self.tell(worker, "queries.submit", task)

    async def answer(self, worker: str) -> None:
        if self.chance.hits(0.5):
            found = [await side.stores[worker].queries.claim(worker, QUEUES, 1000) for side in self.sides]
            self.coverage.note("queries.claim", "claims" if found[0] else "nothing")
            assert_same(*({task.query_id: task for task in one} for one in found), "queries.claim")
        reply = r.QueryResult(query_id=self.chance.query_id(), result=Raw(b"%d" % self.chance.next()))
        for side in self.sides:
            await side.stores[worker].queries.complete([reply])

    async def use_values(self, worker: str) -> None:
        """Use a value twice."""
        for _ in range(2):
            await self.use_value(worker)

    async def use_value(self, worker: str) -> None:
        key, value = f"k-{self.chance.below(2)}", b"%d" % self.chance.next()
        expires_at = self.chance.clock.now() + 100 if self.chance.hits(0.5) else None
        verb = self.chance.choice(("get", "put", "put_if_absent", "delete"))
        arguments = (key,) if verb in ("get", "delete") else (key, value)
        options = {"expires_at": expires_at} if len(arguments) == 2 else {}
        ours, theirs = [await getattr(side.stores[worker].values, verb)(*arguments, **options) for side in self.sides]
        assert_same(ours, theirs, verb)
        if verb == "get":
            self.coverage.note("values.get", "none" if ours is None else "value")
        elif verb == "put_if_absent":
            self.coverage.note("values.put_if_absent", "stored" if ours == value else "kept")

    async def announce(self, worker: str) -> None:
        if self.chance.hits(0.3):
            for side in self.sides:
                await side.stores[worker].workers.remove(worker)
            return
        announcement = r.Announcement(
            worker_id=worker, host="h", pid=1, build="b", queues=QUEUES, slots=8, slots_in_use=self.chance.below(8)
        )
        ours, theirs = [list(await side.stores[worker].workers.announce(announcement, LEASE)) for side in self.sides]
        assert_same(ours, theirs, "announce")
        self.coverage.note("workers.announce", "workers")

    # Looking and moving.

    async def look(self, worker: str) -> None:
        """Look up promises, and take the newest cursors for later."""
        by_id = r.Delivery(event=self.chance.settlement(), promise_id=self.chance.promise_id())
        by_name = replace(by_id, promise_id=None, entity_id=self.chance.choice(ENTITIES), promise=NAMES[0])
        for part in (by_id, by_name):
            ours, theirs = [await side.stores[worker].inspector.promise(part) for side in self.sides]
            assert_same(ours, theirs, part)
            self.coverage.note("inspector.promise", "none" if ours is None else "promise")
        for side in self.sides:
            store = side.stores[worker]
            side.cursors["feed"] = await store.feed.now()
            for topic in TOPICS:
                side.cursors[topic] = (await store.inspector.messages(topic)).cursor

    async def purge(self, worker: str) -> None:
        """Purge some executions, or all of an entity that are closed, of which copies are taken before."""
        parts: list[r.Addressed] = [self.chance.some_ref() for _ in self.chance.many(1, 2)]
        if self.chance.hits(0.5):
            await self.take_copies(worker, self.chance.choice((*ENTITIES, *CHILDREN)))
            parts = [copy.instance for copies in self.copies.values() for copy in copies][-4:] or parts
        for part, (answer, _) in zip(parts, pairs(await self.tell(worker, "purge", *parts)), strict=True):
            if isinstance(answer, r.Purged) and self.chance.hits(0.5):
                # The other half of the workers do not know it yet.
                self.abandon(part.execution_id)

    def abandon(self, execution_id: str) -> None:
        self.holds = [hold for hold in self.holds if hold.instance.execution_id != execution_id]
        self.tasks = [task for task in self.tasks if task[1].execution_id != execution_id]

    async def revive(self, worker: str) -> None:
        await self.tell(worker, "revive", *(self.chance.some_ref() for _ in self.chance.many(1, 2)))

    async def adopt(self, worker: str) -> None:
        """Adopt the copies of an entity that were taken before; no worker has leases on them."""
        entity_id = next(iter(self.copies), None)
        if entity_id is None:
            await self.take_copies(worker, self.chance.choice((*ENTITIES, *CHILDREN)))
        else:
            copies = self.copies.pop(entity_id)
            if self.chance.hits(0.4):
                copies = tuple(map(self.twin, copies))
            for copy in copies:
                self.abandon(copy.instance.execution_id)
            archived = await self.archived(entity_id)
            part = r.Adoption(entity_id=entity_id, copies=copies)
            [(answer, _)] = pairs(await self.tell(worker, "transfer.adopt", part))
            if isinstance(answer, r.Adopted) and archived - await self.archived(entity_id):
                self.coverage.note("transfer.adopt", "restored")
            if self.moves:
                await self.claim(worker)  # before they move on

    async def archived(self, entity_id: str) -> set[str]:
        """Return the executions of an entity whose log is in an archive."""
        copies = await self.sides[0].stores[WORKERS[0]].transfer.copies(entity_id)
        return {copy.instance.execution_id for copy in copies if copy.instance.archived is not None}

    async def remove(self, worker: str) -> None:
        """Remove executions as after a move: those of a copy that was made some time ago, and may be outdated.

        They may be adopted again, as by a move back.
        """
        if self.moving:
            entity_id, sides = self.moving.popitem()
            kind = self.chance.choice(("all", "older", "ended"))
            parts = [r.Removal(entity_id=entity_id, copies=_chosen(copies, kind) or copies) for copies in sides]
            [(answer, _)] = pairs(await self.tell(worker, "transfer.remove", each=lambda side: [parts[side]]))
            if isinstance(answer, r.Removed):
                self.copies = {entity_id: parts[0].copies, **self.copies}
        entity_id = self.chance.choice((*ENTITIES, *CHILDREN))
        if found := await self.copied(worker, entity_id):
            self.moving[entity_id] = found

    async def reserve(self, worker: str) -> None:
        await self.tell(worker, "transfer.reserve", *(self.chance.reservation() for _ in self.chance.many(1, 2)))

    async def archive(self, worker: str) -> None:
        """Archive executions by a copy that was made some time ago, and may be outdated; they may be restored by it."""
        if self.archiving:
            entity_id, sides = self.archiving.popitem()
            kind = self.chance.choice(("all", "ended", "ended", "ended"))
            archive = f"file:///archive/{self.chance.next()} ü"
            parts = [
                r.Archival(entity_id=entity_id, copies=_chosen(copies, kind) or copies, archive=archive)
                for copies in sides
            ]
            [(answer, _)] = pairs(await self.tell(worker, "transfer.archive", each=lambda side: [parts[side]]))
            if isinstance(answer, r.Archived) and self.chance.hits(0.7):
                self.copies = {entity_id: parts[0].copies, **self.copies}
        complete = [instance.entity_id for instance in self.chance.complete]
        entity_id = self.chance.choice(complete or ENTITIES)
        if found := await self.copied(worker, entity_id):
            self.archiving[entity_id] = found

    async def copied(self, worker: str, entity_id: str) -> list[tuple[r.Copy, ...]]:
        """Return the copies that each side makes of an entity; none if it has no execution."""
        found = [tuple(await side.stores[worker].transfer.copies(entity_id)) for side in self.sides]
        return found if found[0] else []

    def twin(self, copy: r.Copy) -> r.Copy:
        """Return a copy under another id, perhaps of another run, as from a store where the same was done."""
        number = self.chance.next()
        given = {"execution_id": f"e-{number}", "run_id": self.chance.choice((copy.instance.run_id, f"r-{number}"))}
        self.chance.entities[given["execution_id"]] = copy.instance.entity_id
        first = [replace(entry, **given) for entry in copy.log if isinstance(entry, events.WorkflowStarted)]
        return replace(copy, instance=replace(copy.instance, **given), log=(*first, *copy.log[len(first) :]))

    async def take_copies(self, worker: str, entity_id: str) -> None:
        copies = tuple(await self.sides[0].stores[worker].transfer.copies(entity_id))
        if copies:
            self.copies = {**self.copies, entity_id: copies}


async def _claim_all(store: Store, worker: str, queues: Sequence[str]) -> list[r.Claim]:
    """Claim until there is nothing more: a store may leave the other workers their share at first."""
    claims: list[r.Claim] = []
    while found := await store.claim(worker, queues, 1000):
        claims += found
    return claims


def _chosen(copies: tuple[r.Copy, ...], kind: str) -> tuple[r.Copy, ...]:
    """Return the executions of an entity that are moved together."""
    match kind:
        case "older":
            return copies[:-1]
        case "ended":
            return tuple(copy for copy in copies if copy.instance.deactivated)
    return copies


def _addressed(task: r.ActivityTask) -> dict[str, str]:
    return {"entity_id": task.entity_id, "execution_id": task.execution_id}
