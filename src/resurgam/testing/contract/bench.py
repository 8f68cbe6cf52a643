"""The test bench of the store cases: a store, its clock, and short helpers for the verbs."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Final, TypeVar

from msgspec import Raw
from msgspec.structs import replace

from resurgam.core import event as events
from resurgam.core.identity import route_of
from resurgam.core.location import Location
from resurgam.core.outcome import ActivityRequest, Entry, Outcome
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.protocol import Store
from resurgam.testing.clock import ManualClock

T = TypeVar("T")

LEASE: Final = 10_000
"""How long a claim must hold in the stores under test, in milliseconds."""

HOUR: Final = 3_600_000
QUEUE: Final = "default"
UNKNOWN: Final = r.ExecutionRef(entity_id="unknown", execution_id="unknown")
"""An execution that was never created."""

_QUIET: Final = 10


@contextmanager
def raises(kind: type[BaseException], text: str = "") -> Iterator[list[BaseException]]:
    """Expect that the block raises *kind* with *text* in its message; the list holds the error afterwards."""
    caught: list[BaseException] = []
    try:
        yield caught
    except kind as error:
        caught.append(error)
    assert caught, f"{kind.__name__} was not raised"
    assert text in str(caught[0]), f"{text!r} is not in {str(caught[0])!r}"


class OpensStores:
    """The parameters of a backend that joins the suite.

    *pause* is how many real seconds the suite waits at a time where it wants to see that nothing happens; a store that
    is reached over a network may need more than none. *limit* is how many it waits for what must come. *partitions* is
    the number of partitions by which the store keeps the order of work (`Bench.beside`).
    """

    pause: float = 0
    limit: float = 5
    partitions: int = 1

    def open_store(self, clock: ManualClock) -> AbstractAsyncContextManager[Store]:
        """Open an empty store that asks *clock* for the time and whose leases hold for `LEASE` milliseconds."""
        raise NotImplementedError

    async def effects_arrived(self, store: Store) -> None:
        """Wait until the effects of the last commits have arrived, where the turns of `Bench.quiet` may be too few."""

    @asynccontextmanager
    async def bench(self, clock: ManualClock | None = None) -> "AsyncIterator[Bench]":
        """Open a store for one case."""
        clock = clock or ManualClock()
        async with self.open_store(clock) as store:
            yield Bench(store, clock, self)


class Bench:
    """A store under test. The helpers pass batches of one; cases about batches call the store itself."""

    def __init__(self, store: Store, clock: ManualClock, backend: OpensStores) -> None:
        self.store = store
        self.clock = clock
        self._backend = backend
        self._numbers = itertools.count(1)

    # Time.

    async def pass_time(self, milliseconds: int) -> None:
        """Advance the clock, and let waiting tasks notice it."""
        self.clock.move_to(self.clock.now() + milliseconds)
        await self.quiet()

    async def quiet(self) -> None:
        """Let all pending tasks run."""
        for _ in range(_QUIET):
            await asyncio.sleep(self._backend.pause)

    async def soon(self, waited_for: Awaitable[T]) -> T:
        """Return a result that must arrive without further events."""
        try:
            return await asyncio.wait_for(waited_for, self._backend.limit)
        except TimeoutError:
            raise AssertionError("what was waited for has not come") from None

    # Instances.

    def beside(self, name: str) -> str:
        """Return an entity id that begins with *name* and shares the partition of ``order``.

        A store with partitions keeps the order of work within each: only there older work comes first.
        """
        home = self._partition("order")
        return next(name for name in _variants(name) if self._partition(name) == home)

    def _partition(self, entity_id: str) -> int:
        return int(route_of(entity_id), 16) % self._backend.partitions

    def started(self, entity_id: str = "order", *, queue: str = QUEUE, **fields: Any) -> events.WorkflowStarted:
        """Return the first event of a new execution."""
        number = next(self._numbers)
        given = {"execution_id": f"execution-{number:04}", "run_id": f"run-{number:04}", **fields}
        return events.WorkflowStarted(
            **{"seq": 1, "at": self.clock.now(), "name": "sell", "python": "3.11", "tree_id": given["run_id"], **given},
            entity_id=entity_id,
            queue=queue,
        )

    async def create(self, entity_id: str = "order", *, queue: str = QUEUE, **fields: Any) -> r.Instance:
        """Create an execution."""
        [answer] = await self.store.create([r.Creation(started=self.started(entity_id, queue=queue, **fields))])
        assert isinstance(answer, r.Created), answer
        return answer.instance

    async def claim(
        self, worker: str = "first", queues: Sequence[str] = (QUEUE,), limit: int = 100
    ) -> Sequence[r.Claim]:
        """Claim all ready instances."""
        return await self.store.claim(worker, queues, limit)

    async def claim_one(self, worker: str = "first", queues: Sequence[str] = (QUEUE,)) -> r.Claim:
        """Claim exactly one instance."""
        claims = await self.claim(worker, queues)
        assert len(claims) == 1, f"expected one claim, got {len(claims)}"
        return claims[0]

    async def commit(
        self, claim: r.Claim, *log: events.Event, wake: int | None = None, release: bool = True, **fields: Any
    ) -> r.Committed | r.Refused:
        """Commit an outcome under a claim, and wait until its effects on other instances and on topics have arrived.

        *base_seq* is that of the claim unless it is given.
        """
        base_seq = fields.pop("base_seq", claim.instance.last_seq)
        worker = fields.pop("worker", "first")
        eager = frozenset(fields.pop("eager", ()))
        covering = {name: fields.pop(name) for name in ("covers", "running", "retries", "answered") if name in fields}
        part = r.Commit(
            execution_id=claim.instance.execution_id,
            entity_id=claim.instance.entity_id,
            epoch=claim.epoch,
            base_seq=base_seq,
            wake=claim.wake if wake is None else wake,
            outcome=Outcome(events=tuple(log), **{"diagnosis": _diagnosis(log), **fields}),
            worker=worker,
            release=release,
            eager=eager,
            **covering,
        )
        [answer] = await self.store.commit([part])
        if isinstance(answer, r.Committed) and _has_late_effects(part.outcome):
            return await self._with_effects(part, answer)
        return answer

    async def _with_effects(self, part: r.Commit, answer: r.Committed) -> r.Committed:
        """Wait until the effects of a commit have arrived; if the lease is kept, add what they put into the inbox."""
        await self.quiet()
        await self._backend.effects_arrived(self.store)
        lease = r.Lease(entity_id=part.entity_id, execution_id=part.execution_id, epoch=part.epoch, wake=part.wake)
        [held] = [r.Refused(reason="released")] if part.release else await self.store.extend([lease])
        return answer if isinstance(held, r.Refused) else replace(answer, wake=held.wake, inbox=held.inbox)

    async def committed(self, claim: r.Claim, *log: events.Event, **fields: Any) -> r.Committed:
        """Commit an outcome that must be accepted."""
        answer = await self.commit(claim, *log, **fields)
        assert isinstance(answer, r.Committed), answer
        return answer

    async def end(self, claim: r.Claim, **fields: Any) -> None:
        """Commit that the workflow has completed without outstanding work."""
        seq = claim.instance.last_seq
        log = (events.WorkflowCompleted(seq=seq + 1), events.WorkflowDeactivated(seq=seq + 2))
        await self.committed(claim, *log, status=Status.COMPLETED, deactivated=True, **fields)

    async def ended(self, entity_id: str = "order") -> r.Instance:
        """Return an execution that has ended."""
        instance = await self.create(entity_id, queue="ended")
        await self.end(await self.claim_one(queues=["ended"]), consumed=())
        found = await self.store.inspector.get(entity_id, instance.run_id)
        assert found is not None
        return found

    async def send_signal(
        self, entity_id: str, value: str, execution_id: str | None = None
    ) -> r.Delivered | r.Missing | r.Ended | r.Settled | r.Outdated:
        """Deliver a signal."""
        delivery = r.Delivery(event=signal(value), entity_id=entity_id, execution_id=execution_id)
        [answer] = await self.store.deliver([delivery])
        return answer

    async def deliver(
        self, event: events.Event, entity_id: str = "order", **fields: Any
    ) -> r.Delivered | r.Missing | r.Ended | r.Settled | r.Outdated:
        """Deliver an event."""
        [answer] = await self.store.deliver([r.Delivery(event=event, entity_id=entity_id, **fields)])
        return answer

    async def pause(self, entity_id: str = "order", *, tree: bool = False) -> None:
        """Pause an instance."""
        assert await self.deliver(events.WorkflowPaused(at=1, tree=tree), entity_id) == r.Delivered()

    async def resume(self, entity_id: str = "order") -> None:
        """Resume an instance."""
        assert await self.deliver(events.WorkflowResumed(at=1), entity_id) == r.Delivered()

    async def send_signals(self, entity_id: str, *values: str) -> None:
        """Deliver signals that must be accepted."""
        for value in values:
            assert await self.send_signal(entity_id, value) == r.Delivered()

    async def get(self, entity_id: str = "order") -> r.Instance:
        """Return the newest execution of an entity, which must exist."""
        found = await self.store.inspector.get(entity_id)
        assert found is not None
        return found

    # Activities.

    async def want(self, claim: r.Claim, *requests: ActivityRequest, **fields: Any) -> r.Committed:
        """Commit an outcome that schedules activities."""
        log = [scheduled(request) for request in requests]
        return await self.committed(claim, *log, activities=requests, **fields)

    async def wanting(self, *refs: int, entity_id: str = "order", queue: str = QUEUE) -> r.Instance:
        """Return a new idle instance with an activity for each of *refs*, which count from 2."""
        instance = await self.create(entity_id, queue="wanting")
        await self.want(await self.claim_one(queues=["wanting"]), *(request(ref, queue) for ref in refs))
        return instance

    async def tasks(
        self, worker: str = "first", queues: Sequence[str] = (QUEUE,), limit: int = 100
    ) -> Sequence[r.ActivityTask]:
        """Claim all ready activities."""
        return await self.store.claim_activities(worker, queues, limit)

    async def task(self, worker: str = "first", queues: Sequence[str] = (QUEUE,)) -> r.ActivityTask:
        """Claim exactly one activity."""
        tasks = await self.tasks(worker, queues)
        assert len(tasks) == 1, f"expected one activity, got {len(tasks)}"
        return tasks[0]

    async def answer(self, task: r.ActivityTask, event: events.Event | None = None) -> r.Accepted | r.Refused:
        """Complete an attempt; without *event* it was successful."""
        done: Any = event or completed(task)
        [answer] = await self.store.complete_activities(
            [r.ActivityResult(entity_id=task.entity_id, execution_id=task.execution_id, epoch=task.epoch, event=done)]
        )
        return answer

    # Leases.

    async def extend(self, holder: r.Claim | r.ActivityTask, wake: int = 0) -> r.Extended | r.Refused:
        """Renew a lease."""
        [answer] = await self.store.extend([lease_of(holder, wake)])
        return answer

    async def extended(self, holder: r.Claim) -> r.Extended:
        """Renew the lease of an instance that must be held, and return what has come since its claim."""
        answer = await self.extend(holder, holder.wake)
        assert isinstance(answer, r.Extended), answer
        return answer

    async def release(
        self, holder: r.Claim | r.ActivityTask, failed: str | None = None, *, final: bool = False
    ) -> r.Released | r.Refused:
        """Release a lease."""
        [answer] = await self.store.release([r.Release(lease=lease_of(holder), failed=failed, final=final)])
        return answer

    # Looking.

    async def queue(self, name: str = QUEUE) -> r.QueueStats:
        """Return the counts of a queue; an unused queue has none."""
        return (await self.store.inspector.stats()).queues.get(name, r.QueueStats())

    async def is_there(self, watch: r.Watch) -> bool:
        """Whether a watch holds now: a wait ends at once then, and is not over otherwise."""
        there = await self.soon(self.store.wait(watch, self.clock.now()))
        waiting = asyncio.ensure_future(self.store.wait(watch))
        if there:
            assert await self.soon(waiting)
            return True
        await self.quiet()
        assert not waiting.done(), f"the wait for {watch} is over, though a look at the same moment did not find it"
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return False


def lease_of(holder: r.Claim | r.ActivityTask, wake: int = 0) -> r.Lease:
    """Return the lease of a claim."""
    if isinstance(holder, r.Claim):
        return r.Lease(
            entity_id=holder.instance.entity_id,
            execution_id=holder.instance.execution_id,
            epoch=holder.epoch,
            wake=wake,
        )
    return r.Lease(
        entity_id=holder.entity_id, execution_id=holder.execution_id, epoch=holder.epoch, ref=holder.request.ref
    )


def signal(value: str, name: str = "news") -> events.SignalReceived:
    """Return a signal whose id and value are *value*."""
    return events.SignalReceived(at=1, name=name, id=value, value=Raw(f'"{value}"'.encode()))


def values(inbox: Iterable[Entry]) -> list[str]:
    """Return the ids of the signals in an inbox, and the types of its other entries."""
    return [entry.event.id if isinstance(entry.event, events.SignalReceived) else entry.event.type for entry in inbox]


def ids(inbox: Iterable[Entry]) -> tuple[int, ...]:
    """Return the ids under which entries are consumed."""
    return tuple(entry.id for entry in inbox if entry.id is not None)


def by_ref(inbox: Iterable[Entry]) -> list[events.Event]:
    """Return answers by their ``ref``, those with the same one in their order.

    Answers from several targets arrive in any order; a case gives each target a ``ref`` of its own.
    """
    return sorted((entry.event for entry in inbox), key=lambda event: getattr(event, "ref", 0))


def routed(name: str, entity_id: str = "order") -> str:
    """Return the id of a promise or a query of an entity, which begins with the entity's route."""
    return f"{route_of(entity_id)}-{name}"


def request(ref: int, queue: str = QUEUE) -> ActivityRequest:
    """Return the request for an activity."""
    return ActivityRequest(ref=ref, name="charge", queue=queue, input=Raw(b"[1]"), entity_id=f"run/{ref}")


def scheduled(intent: ActivityRequest) -> events.ActivityScheduled:
    """Return the event that schedules an activity."""
    return events.ActivityScheduled(
        seq=intent.ref,
        location=Location((intent.ref - 1,)),
        command=f"Task({intent.ref - 2})",
        name=intent.name,
        queue=intent.queue,
        input=intent.input,
    )


def completed(task: r.ActivityTask) -> events.ActivityCompleted:
    """Return the answer of a successful attempt."""
    return events.ActivityCompleted(ref=task.request.ref, at=1, attempt=task.attempt, result=Raw(b"7"))


def retried(task: r.ActivityTask, next_at: int) -> events.ActivityRetryScheduled:
    """Return the answer of a failed attempt that is retried."""
    failure = events.Failure(type="ValueError", message="no")
    return events.ActivityRetryScheduled(
        ref=task.request.ref, at=1, attempt=task.attempt, next_at=next_at, failure=failure
    )


def _variants(name: str) -> Iterator[str]:
    return itertools.chain([name], (f"{name}~{number}" for number in itertools.count(1)))


def _has_late_effects(outcome: Outcome) -> bool:
    return bool(outcome.children or outcome.messages or outcome.publications)


def _diagnosis(log: Sequence[events.Event]) -> str | None:
    return next((entry.diagnosis for entry in log if isinstance(entry, events.WorkflowDiverged)), None)
