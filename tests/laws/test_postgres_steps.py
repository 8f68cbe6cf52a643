"""Steps, ends and starts have functions of their own, and do the same as the ones of all commits and creations, row by row."""

import random
from contextlib import AsyncExitStack, contextmanager

import pytest
from msgspec.structs import replace

from resurgam.core import event as events
from resurgam.core.outcome import Outcome
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.postgres import steps
from resurgam.store.postgres.store import PostgresStore
from resurgam.testing import ManualClock
from resurgam.testing.contract import LEASE
from resurgam.testing.contract.bench import completed, request, scheduled
from support.postgres import execute, fresh_url

ACTIONS = 120
QUEUES = ("default", "other")
WORKER = "worker"

ROWS = {
    "instances": "to_jsonb(t) - 'position'",
    "states": "to_jsonb(t) - '{feed_key,turn,owner,claim,covered}'::text[] || jsonb_build_object('covered', covered::jsonb)",
    "events": "to_jsonb(t) - '{feed_key,position}'::text[]",
    "inbox": "to_jsonb(t)",
    "activities": "to_jsonb(t) - '{turn,owner,claim}'::text[]",
    "instance_tags": "to_jsonb(t)",
}
"""What is compared of each table: not the order among all transactions, nor the names of the open stores."""


class GeneralStore(PostgresStore):
    """A store without functions of their own for steps, ends and starts."""

    def submit(self, part, done):
        """Commit as anything else."""
        self._submit_commit(part, done)

    async def _start(self, part):
        return await self._create(part)


class Course:
    """A drawn course of starts and commits, told to both stores: most are steps, and something is unusual about some."""

    def __init__(self, seed, clock, general, hot):
        self.draw = random.Random(seed)
        self.clock = clock
        self.stores = general, hot
        self.claims = {}
        self.numbers = iter(range(1, 1000))

    async def both(self, verb, *arguments):
        """Return the answer of both stores, which must be the same."""
        one, other = [await getattr(store, verb)(*arguments) for store in self.stores]
        assert one == other, verb
        return one

    async def act(self):
        action = self.draw.choices(
            [self.start, self.step, self.disturb, self.claim, self.work], weights=[2, 8, 1, 2, 3]
        )[0]
        await action()

    async def start(self):
        number = next(self.numbers)
        entity_id = f"entity-{number if self.draw.random() < 0.9 else 1}"
        started = events.WorkflowStarted(
            seq=1,
            at=self.clock.now(),
            name="sell",
            python="3.11",
            tree_id=f"run-{number}",
            entity_id=entity_id,
            execution_id=f"execution-{number}",
            run_id=f"run-{number}",
            queue=self.draw.choice(QUEUES),
            tags={"k": "v"} if self.draw.random() < 0.3 else {},
        )
        begun = r.Claim(instance=r.Instance.of(started), epoch=1, wake=0)
        first = self.commit_of(begun, 1)
        offer = r.EagerOffer(worker=WORKER, queues=QUEUES)
        [answer] = await self.both("create", [r.Creation(started=started, offer=offer, first=first)])
        if isinstance(answer, r.Created) and answer.committed is not None:
            self.keep(begun, first, answer.committed)

    def commit_of(self, claim, base_seq):
        """Return a commit that is a step, or nearly."""
        draw, (running, wake) = self.draw, self.claims.get(claim.instance.execution_id, (claim, (), claim.wake))[1:]
        requests = [
            request(base_seq + n + 1, draw.choice(QUEUES[:1] * 5 + QUEUES)) for n in range(draw.choice((0, 1, 1, 2)))
        ]
        answered = draw.random() < 0.5 and running[:1]
        still = tuple(one for one in running if one not in (answered or ()))
        log = [replace(scheduled(one), at=self.clock.now()) for one in requests]
        for one in answered or ():
            result = events.ActivityCompleted(seq=base_seq + len(log) + 1, at=1, ref=one.ref, attempt=1, result=b"7")
            log.append(replace(result, result=completed_value()))
        eager = {one.ref for one in requests if draw.random() < 0.97}
        return r.Commit(
            entity_id=claim.instance.entity_id,
            execution_id=claim.instance.execution_id,
            epoch=claim.epoch if base_seq == 1 or draw.random() < 0.97 else claim.epoch + 1,
            base_seq=base_seq,
            wake=wake,
            outcome=Outcome(
                events=tuple(log),
                activities=tuple(requests),
                wake_at=self.clock.now() + 50 if draw.random() < 0.1 else None,
            ),
            worker=WORKER,
            release=draw.random() < 0.4,
            eager=frozenset(eager),
            covers=draw.random() < 0.95,
            running=still,
        )

    def keep(self, claim, part, committed):
        """Note what a commit has left."""
        execution_id = part.execution_id
        if part.outcome.status.terminal or (part.release and not committed.tasks):
            self.claims.pop(execution_id, None)
            return
        covered = [task.request for task in committed.tasks if task.epoch == 0]
        instance = replace(claim.instance, last_seq=part.base_seq + len(part.outcome.events))
        self.claims[execution_id] = replace(claim, instance=instance), (*part.running, *covered), committed.wake

    async def step(self):
        if not self.claims:
            return
        claim, _, _ = self.claims[self.draw.choice(sorted(self.claims))]
        part = self.commit_of(claim, claim.instance.last_seq)
        if self.draw.random() < 0.25:
            running = () if self.draw.random() < 0.8 else part.running
            part = replace(part, outcome=self.end(part.base_seq), eager=frozenset(), running=running)
            part = replace(part, release=self.draw.random() < 0.9)
        [answer] = await self.both("commit", [part])
        if isinstance(answer, r.Committed):
            self.keep(claim, part, answer)
        elif part.epoch == claim.epoch:
            self.claims.pop(part.execution_id)

    def end(self, base_seq):
        """Return an outcome that closes an instance, and seldom does more."""
        draw = self.draw
        if draw.random() < 0.5:
            entry, status, failure = events.WorkflowCompleted(seq=base_seq + 1, at=1), Status.COMPLETED, None
        else:
            failed = events.Failure(type="Oops", message="no")
            entry, status, failure = (
                events.WorkflowFailed(seq=base_seq + 1, at=1, failure=failed),
                Status.FAILED,
                "Oops",
            )
        consumed = (1,) if draw.random() < 0.1 else ()
        return Outcome(
            events=(entry,), status=status, failure=failure, deactivated=draw.random() < 0.9, consumed=consumed
        )

    async def disturb(self):
        """Do what makes the next step unusual."""
        draw = self.draw
        if draw.random() < 0.2:
            self.clock.move_to(self.clock.now() + LEASE // 3)
            return
        event = draw.choice(
            [
                events.SignalReceived(name="s", id=str(next(self.numbers))),
                events.WorkflowPaused(),
                events.WorkflowResumed(),
            ]
        )
        await self.both("deliver", [r.Delivery(event=event, entity_id=f"entity-{draw.randrange(1, 8)}")])

    async def claim(self):
        for claim in await self.both("claim", WORKER, QUEUES, 5):
            self.claims[claim.instance.execution_id] = claim, (), claim.wake

    async def work(self):
        tasks = await self.both("claim_activities", WORKER, QUEUES, 5)
        await self.both(
            "complete_activities",
            [
                r.ActivityResult(
                    entity_id=task.entity_id, execution_id=task.execution_id, epoch=task.epoch, event=completed(task)
                )
                for task in tasks
            ],
        )


def completed_value():
    return completed(
        r.ActivityTask(entity_id="", execution_id="", epoch=0, attempt=1, deliveries=0, request=request(2))
    ).result


async def rows_of(url):
    schema = url.partition("schema=")[2]
    return {
        table: sorted(row for (row,) in await execute(f"SELECT ({columns})::text FROM {schema}.{table} t"))
        for table, columns in ROWS.items()
    }


@pytest.mark.parametrize("seed", range(4))
async def test_steps_ends_and_starts_equal_commits_and_creations(seed, monkeypatch):
    """Told to both at once, a course of them gets the same answers and leaves the same rows."""
    taken = {"stepped": 0, "started": 0, "end_part": 0}
    for name in taken:
        monkeypatch.setattr(steps, name, counted(name, getattr(steps, name), taken))
    clock, urls = ManualClock(), [fresh_url(), fresh_url()]
    async with AsyncExitStack() as stack:
        stores = [
            kind(url, clock, name=WORKER, lease=LEASE)
            for kind, url in zip((GeneralStore, PostgresStore), urls, strict=True)
        ]
        for store in stores:
            stack.push_async_callback(store.close)
        course = Course(seed, clock, *stores)
        for _ in range(ACTIONS):
            await course.act()
        one, other = [await rows_of(url) for url in urls]
        assert one == other
    assert min(taken.values()) > 2, f"the course has too few of them: {taken}"


def counted(name, original, taken):
    def call(part):
        found = original(part)
        taken[name] += found is not None
        return found

    return call


async def test_a_step_whose_answer_was_lost_counts_once():
    """When it is sent again, it is recognised by the events that it has left; one that is only like it is not."""
    started = events.WorkflowStarted(
        seq=1,
        at=1,
        name="sell",
        python="3.11",
        tree_id="t",
        entity_id="e",
        execution_id="x",
        run_id="r",
        queue="default",
    )
    step = Outcome(events=(scheduled(request(2)),), activities=(request(2),))
    end = Outcome(events=(events.WorkflowCompleted(seq=3, at=1),), status=Status.COMPLETED, deactivated=True)
    url = fresh_url()
    store = PostgresStore(url, ManualClock(), name=WORKER, lease=LEASE)
    pool = store._pool
    try:
        await store.create([r.Creation(started=started)])
        [claim] = await store.claim(WORKER, ["default"], 1)
        part = r.Commit(
            entity_id="e",
            execution_id="x",
            epoch=1,
            base_seq=1,
            wake=0,
            outcome=step,
            worker=WORKER,
            covers=True,
            eager=frozenset({2}),
        )
        for verb, request_of, commit in (
            ("step", steps.step_part, part),
            ("finish", steps.end_part, replace(part, base_seq=2, outcome=end, eager=frozenset())),
        ):
            assert await pool.ask(verb, request_of(commit)) == 1
            assert await pool.ask(verb, request_of(commit)) is None
            with repeated(pool):
                assert await pool.ask(verb, request_of(commit)) == 1
                like = replace(
                    commit, outcome=replace(commit.outcome, events=(replace(commit.outcome.events[0], at=5),))
                )
                assert await pool.ask(verb, request_of(like)) is None
        assert len(await store.read(claim.instance)) == 3
    finally:
        await store.close()


@contextmanager
def repeated(pool):
    """Have the pool say that it sends everything again."""
    original = pool._arguments
    pool._arguments = lambda *given, lost: original(*given, lost=True)
    try:
        yield
    finally:
        pool._arguments = original
