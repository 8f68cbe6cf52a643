"""The Redis store: a verb is one function call for each partition that it concerns, and calls share flights."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from resurgam.core import event as events
from resurgam.core.clock import Clock
from resurgam.core.errors import CorruptHistory
from resurgam.core.event import decode_event
from resurgam.core.state import closing_entry
from resurgam.store import records as r
from resurgam.store.answers import Undecodable, eager_tasks
from resurgam.store.owner import Owner
from resurgam.store.redis import parts as p
from resurgam.store.redis.feed import RedisFeed
from resurgam.store.redis.inspector import RedisInspector
from resurgam.store.redis.link import Link
from resurgam.store.redis.lost_leases import LostLeases
from resurgam.store.redis.outbox import OutboxDriver
from resurgam.store.redis.outlook import ACTIVITIES, INSTANCES
from resurgam.store.redis.queries import RedisQueries
from resurgam.store.redis.reaping import reap
from resurgam.store.redis.rotation import Rotation
from resurgam.store.redis.transfer import RedisTransfer
from resurgam.store.redis.url import parse
from resurgam.store.redis.values import RedisValues
from resurgam.store.redis.watcher import Watcher
from resurgam.store.redis.workers import RedisWorkers

_Delivery = r.Delivered | r.Missing | r.Ended | r.Settled | r.Outdated
_Request = tuple[int, p.Part]
"""A partition and a part for it."""


class RedisStore:
    """Instances in Redis, for engines in any number of processes."""

    def __init__(self, url: str, clock: Clock, *, name: str, lease: int = 10_000) -> None:
        self._link = link = Link(parse(url), clock, name=name, lease=lease)
        self._outbox = OutboxDriver(link)
        self._watcher = Watcher(link, clock, self._leases)
        self._owner = Owner(link, lambda owner: reap(link, owner))
        self._lost = LostLeases(link, lease=lease)
        self._instances = Rotation(link, INSTANCES, lambda claim: self._lost.release(p.lease_of(claim)))
        self._activities = Rotation(link, ACTIVITIES, lambda task: self._lost.release(p.lease_of(task, ref=task[3])))
        # The instances that this store has claimed, as they were then or after a later commit that was no step: commits
        # write them for people to read.
        self._claimed: dict[str, r.Instance] = {}
        self.inspector = RedisInspector(link)
        self.queries = RedisQueries(link, self._watcher.outlook)
        self.transfer = RedisTransfer(link, self._outbox)
        self.feed = RedisFeed(link)
        self.workers = RedisWorkers(link)
        self.values = RedisValues(link)
        link.notify = self._note

    # Executions.

    async def create(self, parts: Sequence[r.Creation]) -> Sequence[r.Created | r.Exists]:
        """Begin executions."""
        requests = [(self._at(part.started.entity_id), p.create_part(part, self._link)) for part in parts]
        answers = await self._ask_each("create", requests)
        self._link.warn_of_losses()
        return [self._created(part, answer) for part, answer in zip(parts, answers, strict=True)]

    def _created(self, part: r.Creation, answer: Sequence[Any]) -> r.Created | r.Exists:
        kind, view, *rest = answer
        begun = r.Instance.of(part.started)
        instance = begun if view is None else p.instance_of(view)
        if kind == b"exists":
            return r.Exists(instance=instance)
        claimed, committed = rest
        if claimed is None:
            return r.Created(instance=instance)
        log = (part.started,)
        claim = r.Claim(instance=begun, epoch=1, wake=0, log=log) if claimed == 1 else p.claim_of(claimed, log=log)
        self._keep(claim)
        if committed is None or part.first is None:
            return r.Created(instance=instance, claim=claim)
        done = self._committed(part.first, committed)
        assert isinstance(done, r.Committed), done
        if view is None:
            instance = p.instance_after(begun, part.first)
        return r.Created(instance=instance, claim=claim, committed=done)

    async def deliver(self, parts: Sequence[r.Delivery]) -> Sequence[_Delivery]:
        """Put events into inboxes."""
        places = [self._place_of(part) for part in parts]
        requests = [
            (place, p.deliver_part(part)) for place, part in zip(places, parts, strict=True) if place is not None
        ]
        answers = iter(await self._ask_each("deliver", requests))
        return [r.Missing() if place is None else await self._delivered(next(answers)) for place in places]

    def _place_of(self, part: r.Delivery) -> int | None:
        return self._at(part.entity_id) if part.promise_id is None else self._link.partition_of_route(part.promise_id)

    async def _delivered(self, answer: Sequence[Any]) -> _Delivery:
        kind, *rest = answer
        match kind:
            case b"delivered":
                claim = None if rest[0] is None else await self._claim_of(rest[0])
                return r.Delivered(claim=claim)
            case b"missing":
                return r.Missing()
            case b"settled":
                return r.Settled()
            case b"outdated":
                return r.Outdated()
            case _:
                return r.Ended(status=p.status_of(rest[0]))

    async def revive(self, executions: Sequence[r.Addressed]) -> Sequence[r.Revived | r.Missing]:
        """Offer dead letters again."""
        answers = await self._ask_each("revive", self._named(executions))
        return [r.Missing() if count < 0 else r.Revived(count=count) for count in answers]

    async def purge(self, executions: Sequence[r.Addressed]) -> Sequence[r.Purged | r.Missing | r.Unfinished]:
        """Delete closed executions."""
        answers = await self._ask_each("purge", self._named(executions))
        known: dict[bytes, r.Purged | r.Missing] = {b"purged": r.Purged(), b"missing": r.Missing()}
        return [known.get(answer) or r.Unfinished(status=p.status_of(answer)) for answer in answers]

    async def read(self, execution: r.Addressed, after: int = 0) -> Sequence[events.Event]:
        """Return the log beyond *after*."""
        part = [execution.entity_id, execution.execution_id, after]
        return _decode_log(await self._link.ask(self._at(execution.entity_id), "read", part), execution.execution_id)

    # Leases and commits.

    async def claim(self, worker: str, queues: Sequence[str], limit: int) -> Sequence[r.Claim]:
        """Lease instances that are ready."""
        outlook = await self._watcher.outlook(worker, queues)
        self._link.warn_of_losses()
        found = await self._instances.claim(outlook, limit, lambda share: [worker, queues, share])
        claims = [await self._claim_of(answer) for answer in found]
        return [claim for claim in claims if claim is not None]

    async def _claim_of(self, answer: Sequence[Any]) -> r.Claim | None:
        """Return a claim; an instance that this version cannot decode becomes a dead letter instead."""
        try:
            return self._keep(p.claim_of(answer))
        except Undecodable as error:
            await self._bury(p.lease_of(answer), error)
            return None

    async def _bury(self, lease: r.Lease, error: Undecodable) -> None:
        await self.release([r.Release(lease=lease, failed=error.reason, final=True)])

    def _leases(self, execution_id: str) -> bool:
        """Whether this store leases an execution that is open, as far as it knows."""
        instance = self._claimed.get(execution_id)
        return instance is not None and not instance.status.terminal

    def _let_go(self, execution_id: str) -> None:
        """Forget an instance whose lease has ended."""
        if self._claimed.pop(execution_id, None) is not None:
            self._watcher.waiters.note_lease_gone(execution_id)

    def _keep(self, claim: r.Claim) -> r.Claim:
        self._claimed[claim.instance.execution_id] = claim.instance
        return claim

    async def commit(self, parts: Sequence[r.Commit]) -> Sequence[r.Committed | r.Refused]:
        """Apply outcomes."""
        answers = await self._ask_all([(self._at(part.entity_id), *self._commit_request(part)) for part in parts])
        return [self._committed(part, answer) for part, answer in zip(parts, answers, strict=True)]

    def submit(self, part: r.Commit, done: Callable[[r.Committed | r.Refused | Exception], None]) -> None:
        """Apply one outcome and call back."""
        try:
            verb, request = self._commit_request(part)
        except Exception as error:  # noqa: BLE001 -- handed on as any other
            done(error)
            return
        expected: r.Committed | None = None

        def answered(answer: object) -> None:
            if answer == 1 and expected is not None:
                done(expected)
            else:
                done(answer if isinstance(answer, Exception) else self._committed(part, answer))

        self._link.call(self._link.partition_of(part.entity_id), verb, request, answered, at_once=True)
        if verb == "step":
            expected = p.stepped(part)  # made while the server works

    def _commit_request(self, part: r.Commit) -> tuple[str, p.Part]:
        """Return the function that applies a commit, and its part."""
        step = p.step_part(part)
        if step is not None:
            return "step", step
        return "commit", p.commit_part(part, self._link, self._claimed.get(part.execution_id))

    def _committed(self, part: r.Commit, answer: Any) -> r.Committed | r.Refused:
        if answer == 1:  # a step: it has changed nothing but the log, and keeps the lease
            return p.stepped(part)
        try:
            committed = p.committed_of(part, answer)
        except Undecodable as error:
            committed = self._give_up(part, answer, error)
        if part.outcome.status.terminal and isinstance(committed, r.Committed):
            self._watcher.waiters.note_closed(part.execution_id, closing_entry(part.outcome.events))
        instance = self._claimed.get(part.execution_id)
        if isinstance(committed, r.Refused) or (part.release and not committed.tasks):
            self._let_go(part.execution_id)
        elif instance is not None:
            self._claimed[part.execution_id] = p.instance_after(instance, part)
        return committed

    def _give_up(self, part: r.Commit, answer: Any, error: Undecodable) -> r.Committed:
        """Make an instance a dead letter whose inbox cannot be decoded; this commit counts, the next finds no lease."""
        lease = r.Lease(entity_id=part.entity_id, execution_id=part.execution_id, epoch=part.epoch)
        request = p.release_part(r.Release(lease=lease, failed=error.reason, final=True))
        self._link.call(self._at(part.entity_id), "release", request, lambda _: None)
        wake, _, refs = answer
        return r.Committed(wake=wake, tasks=eager_tasks(part, refs))

    async def extend(self, leases: Sequence[r.Lease]) -> Sequence[r.Extended | r.Refused]:
        """Renew leases."""
        answers = await self._ask_each(
            "extend", [(self._at(lease.entity_id), p.extend_part(lease)) for lease in leases]
        )
        return [await self._extended(lease, answer) for lease, answer in zip(leases, answers, strict=True)]

    async def _extended(self, lease: r.Lease, answer: Any) -> r.Extended | r.Refused:
        try:
            extended = p.extended_of(answer)
        except Undecodable as error:
            await self._bury(lease, error)
            return r.Refused(reason="something in the inbox cannot be decoded")
        if isinstance(extended, r.Refused) and lease.ref is None:
            self._let_go(lease.execution_id)
        return extended

    async def release(self, parts: Sequence[r.Release]) -> Sequence[r.Released | r.Refused]:
        """End leases."""
        requests = [(self._at(part.lease.entity_id), p.release_part(part)) for part in parts]
        for part in parts:
            if part.lease.ref is None:
                self._let_go(part.lease.execution_id)
        answers = await self._ask_each("release", requests)
        return [r.Refused(reason=answer.decode()) if isinstance(answer, bytes) else r.Released() for answer in answers]

    # Activities.

    async def claim_activities(self, worker: str, queues: Sequence[str], limit: int) -> Sequence[r.ActivityTask]:
        """Lease activities whose time has come."""
        outlook = await self._watcher.outlook(worker, queues)
        found = await self._activities.claim(outlook, limit, lambda share: [queues, share, worker, p.CANCELLED])
        return [task for answer in found if (task := await self._task_of(answer)) is not None]

    async def _task_of(self, answer: Sequence[Any]) -> r.ActivityTask | None:
        """Return a task; an activity that this version cannot decode becomes a dead letter instead."""
        try:
            return p.task_of(answer)
        except Undecodable as error:
            await self._bury(p.lease_of(answer, ref=answer[3]), error)
            return None

    async def complete_activities(self, parts: Sequence[r.ActivityResult]) -> Sequence[r.Accepted | r.Refused]:
        """Put the results of attempts into inboxes."""
        requests = [(self._at(part.entity_id), p.result_part(part)) for part in parts]
        answers = await self._ask_each("complete_activities", requests)
        return [r.Refused(reason=answer.decode()) if isinstance(answer, bytes) else r.Accepted() for answer in answers]

    # The store as a whole.

    @property
    def flights(self) -> int:
        """The number of round trips so far."""
        return self._link.flights

    def wait(self, watch: r.Watch, until: int | None = None) -> Coroutine[Any, Any, bool]:
        """Return True once what is watched for is there, False at the moment *until*."""
        return self._watcher.wait(watch, until)

    async def close(self) -> None:
        """Carry the effects under way, end the connections and fail the calls that wait."""
        if self._link.lifetime.forked:
            return  # everything here belongs to the parent
        await self._outbox.close()
        for outlook in self._watcher.outlooks:
            self._instances.return_late(outlook)
            self._activities.return_late(outlook)
        await self._lost.close()
        self._watcher.close()
        await self._owner.close()
        await self._link.close()

    def _at(self, entity_id: str) -> int:
        return self._link.partition_of(entity_id)

    def _named(self, executions: Iterable[r.Addressed]) -> list[_Request]:
        return [(self._at(one.entity_id), [one.entity_id, one.execution_id]) for one in executions]

    async def _ask_each(self, verb: str, requests: Sequence[_Request]) -> Sequence[Any]:
        return await self._ask_all([(partition, verb, part) for partition, part in requests])

    async def _ask_all(self, calls: Sequence[tuple[int, str, p.Part]]) -> Sequence[Any]:
        if len(calls) == 1:  # most of the time; a gathering would need a task
            return [await self._link.ask(*calls[0])]
        return await asyncio.gather(*(self._link.ask(*call) for call in calls))

    def _note(self, partition: int, notices: Sequence[bytes]) -> None:
        self._watcher.note(partition, notices)
        if b"outbox" in notices:
            for kind, value in zip(notices[::2], notices[1::2], strict=True):
                if kind == b"outbox":
                    self._outbox.drive(partition, int(value))


def _decode_log(bodies: Sequence[bytes], execution_id: str) -> Sequence[events.Event]:
    found: list[events.Event] = []
    for body in bodies:
        try:
            found.append(decode_event(body))
        except ValueError as error:
            seq = found[-1].seq + 1 if found else 1
            message = f"entry {seq} of execution {execution_id} cannot be read: {error}"
            raise CorruptHistory(message, readable=found) from error
    return found
