"""The Postgres store: a verb is one function call, and calls of a verb share flights."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from resurgam.core import event as events
from resurgam.core.clock import Clock
from resurgam.core.state import closing_entry
from resurgam.store import records as r
from resurgam.store.answers import Undecodable, eager_tasks
from resurgam.store.owner import Owner
from resurgam.store.postgres import parts as p
from resurgam.store.postgres import steps as s
from resurgam.store.postgres import work_parts as w
from resurgam.store.postgres.feed import PostgresFeed
from resurgam.store.postgres.inspector import PostgresInspector
from resurgam.store.postgres.lines import Lines
from resurgam.store.postgres.outlook import ACTIVITIES, INSTANCES
from resurgam.store.postgres.pool import Pool
from resurgam.store.postgres.queries import PostgresQueries
from resurgam.store.postgres.rows import decode_log, instance_of, status_of
from resurgam.store.postgres.transfer import PostgresTransfer
from resurgam.store.postgres.url import parse
from resurgam.store.postgres.values import PostgresValues
from resurgam.store.postgres.watcher import Watcher
from resurgam.store.postgres.workers import PostgresWorkers

_Delivery = r.Delivered | r.Missing | r.Ended | r.Settled | r.Outdated
_Done = Callable[[r.Committed | r.Refused | Exception], None]


class PostgresStore:
    """Instances in Postgres, for engines in any number of processes."""

    def __init__(self, url: str, clock: Clock, *, name: str, lease: int = 10_000) -> None:
        self._leased: set[str] = set()
        """The open instances that this store leases, as far as it knows."""

        self._pool = pool = Pool(parse(url), clock, name=name, lease=lease)
        pool.verb("step", s.step_arguments, recognises=True, alone=s.step_alone_arguments)
        pool.verb("finish", s.end_arguments, recognises=True)
        pool.verb("purge", w.purge_arguments)
        pool.reader("read", "logs", w.read_arguments)
        for verb in w.REPEATABLE:
            pool.verb(verb, keeps=False)
        self._lines = Lines()
        self._watcher = Watcher(pool, clock, self._leased.__contains__)
        self._owner = Owner(pool, lambda owner: pool.ask("reap", owner))
        pool.notify = self._watcher.note
        self.inspector = PostgresInspector(pool, clock)
        self.queries = PostgresQueries(pool, clock, self._watcher.claim)
        self.transfer = PostgresTransfer(pool)
        self.feed = PostgresFeed(pool)
        self.workers = PostgresWorkers(pool, clock)
        self.values = PostgresValues(pool, clock)

    # Executions.

    async def create(self, parts: Sequence[r.Creation]) -> Sequence[r.Created | r.Exists]:
        """Begin executions."""
        one_way = len(parts) == 1 or _are_alike(parts)
        return await _each(self._start if one_way else self._create, parts)  # not by two functions: in order

    async def _start(self, part: r.Creation) -> r.Created | r.Exists:
        start = s.start_part(part)
        if start is None or await self._pool.ask("start", start) is None:
            return await self._create(part)
        return self._started(part)

    async def _create(self, part: r.Creation) -> r.Created | r.Exists:
        kind, view, *rest = await self._pool.ask("create", p.create_part(part))
        instance = instance_of(view)
        if kind == "exists":
            return r.Exists(instance=instance)
        claimed, committed = rest
        if claimed is None:
            return r.Created(instance=instance)
        claim = self._keep(p.claim_of(claimed, log=(part.started,)))
        if committed is None or part.first is None:
            return r.Created(instance=instance, claim=claim)
        done = self._committed(part.first, committed)
        assert isinstance(done, r.Committed), done
        return r.Created(instance=instance, claim=claim, committed=done)

    def _started(self, part: r.Creation) -> r.Created:
        created = s.started(part)
        assert created.committed is not None
        if part.first is not None and not s.lets_go(part.first, created.committed):
            self._leased.add(part.started.execution_id)
        return created

    async def deliver(self, parts: Sequence[r.Delivery]) -> Sequence[_Delivery]:
        """Put events into inboxes."""
        return await _each(self._deliver, parts)

    async def _deliver(self, part: r.Delivery) -> _Delivery:
        kind, *rest = await self._pool.ask("deliver", p.deliver_part(part))
        match kind:
            case "delivered":
                return r.Delivered(claim=None if rest[0] is None else await self._claim_of(rest[0]))
            case "missing":
                return r.Missing()
            case "settled":
                return r.Settled()
            case "outdated":
                return r.Outdated()
            case _:
                return r.Ended(status=status_of(rest[0]))

    async def revive(self, executions: Sequence[r.Addressed]) -> Sequence[r.Revived | r.Missing]:
        """Offer dead letters again."""
        answers = await self._ask_each("revive", [(one.entity_id, one.execution_id) for one in executions])
        return [r.Missing() if count < 0 else r.Revived(count=count) for count in answers]

    async def purge(self, executions: Sequence[r.Addressed]) -> Sequence[r.Purged | r.Missing | r.Unfinished]:
        """Delete closed executions."""
        return await _each(self._purge, executions)

    async def _purge(self, one: r.Addressed) -> r.Purged | r.Missing | r.Unfinished:
        known: dict[str, r.Purged | r.Missing] = {"purged": r.Purged(), "missing": r.Missing()}
        while (answer := await self._pool.ask("purge", (one.entity_id, one.execution_id))) == "more":
            pass  # its log is too long for one call
        return known.get(answer) or r.Unfinished(status=status_of(answer))

    async def read(self, execution: r.Addressed, after: int = 0) -> Sequence[events.Event]:
        """Return the log beyond *after*."""
        entries = await self._pool.ask("read", (execution.entity_id, execution.execution_id, after))
        return decode_log(entries, execution.execution_id)

    # Leases and commits.

    async def claim(self, worker: str, queues: Sequence[str], limit: int) -> Sequence[r.Claim]:
        """Lease instances that are ready."""
        found = await self._watcher.claim(INSTANCES, worker, queues, w.claim_part(worker, queues, limit))
        claims = [await self._claim_of(answer) for answer in found]
        return [claim for claim in claims if claim is not None]

    async def _claim_of(self, answer: Sequence[Any]) -> r.Claim | None:
        """Return a claim; an instance that this version cannot decode becomes a dead letter instead."""
        try:
            return self._keep(p.claim_of(answer))
        except Undecodable as error:
            await self._bury(p.lease_of(answer), error)
            return None

    def _keep(self, claim: r.Claim) -> r.Claim:
        if not claim.instance.status.terminal:
            self._leased.add(claim.instance.execution_id)
        return claim

    def _let_go(self, execution_id: str) -> None:
        """Forget an instance whose lease has ended."""
        if execution_id in self._leased:
            self._leased.discard(execution_id)
            self._watcher.waiters.note_lease_gone(execution_id)

    async def _bury(self, lease: r.Lease, error: Undecodable) -> None:
        await self.release([r.Release(lease=lease, failed=error.reason, final=True)])

    async def commit(self, parts: Sequence[r.Commit]) -> Sequence[r.Committed | r.Refused]:
        """Apply outcomes."""
        submit = self.submit if len(parts) == 1 else self._submit_commit  # not by two functions: in order
        return await _each(lambda part: self._commit(submit, part), parts)

    async def _commit(self, submit: Callable[[r.Commit, _Done], None], part: r.Commit) -> r.Committed | r.Refused:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        submit(part, lambda answer: None if future.done() else future.set_result(answer))
        answer = await future
        if isinstance(answer, Exception):
            raise answer
        committed: r.Committed | r.Refused = answer
        return committed

    def submit(self, part: r.Commit, done: _Done) -> None:
        """Apply one outcome and call back."""
        try:
            verb, request = "step", s.step_part(part)
            if request is None:
                verb, request = "finish", s.end_part(part)
        except Exception as error:  # noqa: BLE001 -- handed on as any other
            done(error)
            return
        if request is None:
            self._submit_commit(part, done)
        else:
            self._lines.call(part.execution_id, verb, lambda: self._send(verb, request, part, done))

    def _send(self, verb: str, request: s.Step, part: r.Commit, done: _Done) -> None:
        """Send a step or an end; what is more than that, as a commit."""

        def answered(answer: object) -> None:
            if answer is None:
                self._send_commit(part, done)
                return
            self._lines.answered(part.execution_id)
            if isinstance(answer, Exception):
                done(answer)
            else:
                self._watcher.note_log(part.execution_id)
                done(self._noted(part, s.stepped(part)))

        self._pool.call(verb, request, answered)

    def _submit_commit(self, part: r.Commit, done: _Done) -> None:
        self._lines.call(part.execution_id, "commit", lambda: self._send_commit(part, done))

    def _send_commit(self, part: r.Commit, done: _Done) -> None:
        try:
            request = p.commit_part(part)
        except Exception as error:  # noqa: BLE001 -- handed on as any other
            self._lines.answered(part.execution_id)
            done(error)
            return

        def answered(answer: object) -> None:
            self._lines.answered(part.execution_id)
            done(answer if isinstance(answer, Exception) else self._committed(part, answer))

        self._pool.call("commit", request, answered)

    def _committed(self, part: r.Commit, answer: Any) -> r.Committed | r.Refused:
        try:
            committed = p.committed_of(part, answer)
        except Undecodable as error:
            committed = self._give_up(part, answer, error)
        return self._noted(part, committed)

    def _noted(self, part: r.Commit, committed: r.Committed | r.Refused) -> r.Committed | r.Refused:
        """Note the end of an execution or of its lease."""
        if part.outcome.status.terminal and isinstance(committed, r.Committed):
            self._watcher.waiters.note_closed(part.execution_id, closing_entry(part.outcome.events))
        if isinstance(committed, r.Refused) or s.lets_go(part, committed):
            self._let_go(part.execution_id)
        return committed

    def _give_up(self, part: r.Commit, answer: Any, error: Undecodable) -> r.Committed:
        """Make an instance a dead letter whose inbox cannot be decoded; this commit counts, the next finds no lease."""
        lease = r.Lease(entity_id=part.entity_id, execution_id=part.execution_id, epoch=part.epoch)
        request = w.release_part(r.Release(lease=lease, failed=error.reason, final=True))
        self._pool.call("release", request, lambda _: None)
        wake, _, refs = answer
        return r.Committed(wake=wake, tasks=eager_tasks(part, refs))

    async def extend(self, leases: Sequence[r.Lease]) -> Sequence[r.Extended | r.Refused]:
        """Renew leases."""
        answers = await self._ask_each("extend", [w.extend_part(lease) for lease in leases])
        return [await self._extended(lease, answer) for lease, answer in zip(leases, answers, strict=True)]

    async def _extended(self, lease: r.Lease, answer: Any) -> r.Extended | r.Refused:
        if isinstance(answer, str):
            return r.Refused(reason=answer)
        wake, inbox = answer
        try:
            return r.Extended(wake=wake, inbox=p.entries_of(inbox))
        except Undecodable as error:
            await self._bury(lease, error)
            return r.Refused(reason=error.reason)

    async def release(self, parts: Sequence[r.Release]) -> Sequence[r.Released | r.Refused]:
        """End leases."""
        for part in parts:
            if part.lease.ref is None:
                self._let_go(part.lease.execution_id)
        answers = await self._ask_each("release", [w.release_part(part) for part in parts])
        return [r.Refused(reason=answer) if isinstance(answer, str) else r.Released() for answer in answers]

    # Activities.

    async def claim_activities(self, worker: str, queues: Sequence[str], limit: int) -> Sequence[r.ActivityTask]:
        """Lease activities whose time has come."""
        part = w.claim_activities_part(worker, queues, limit)
        found = await self._watcher.claim(ACTIVITIES, worker, queues, part)
        return [task for answer in found if (task := await self._task_of(answer)) is not None]

    async def _task_of(self, answer: Sequence[Any]) -> r.ActivityTask | None:
        """Return a task; an activity that this version cannot decode becomes a dead letter instead."""
        try:
            return w.task_of(answer)
        except Undecodable as error:
            await self._bury(p.lease_of(answer, ref=answer[3]), error)
            return None

    async def complete_activities(self, parts: Sequence[r.ActivityResult]) -> Sequence[r.Accepted | r.Refused]:
        """Put the results of attempts into inboxes."""
        answers = await self._ask_each("complete_activities", [w.result_part(part) for part in parts])
        return [r.Refused(reason=answer) if isinstance(answer, str) else r.Accepted() for answer in answers]

    # The store as a whole.

    @property
    def flights(self) -> int:
        """The number of round trips so far."""
        return self._pool.flights

    def wait(self, watch: r.Watch, until: int | None = None) -> Coroutine[Any, Any, bool]:
        """Return True once what is watched for is there, False at the moment *until*."""
        return self._watcher.wait(watch, until)

    async def close(self) -> None:
        """End the connections and fail the calls that wait."""
        if self._pool.lifetime.forked:
            return  # everything here belongs to the parent
        self._watcher.close()
        await self._owner.close()
        await self._pool.close()

    async def _ask_each(self, verb: str, parts: Sequence[Any]) -> Sequence[Any]:
        return await _each(lambda part: self._pool.ask(verb, part), parts)


def _are_alike(parts: Sequence[r.Creation]) -> bool:
    """Whether creations are of different entities, and all or none of them go by `start`."""
    entities = {part.started.entity_id for part in parts}
    return len(entities) == len(parts) and len({s.start_part(part) is None for part in parts}) == 1


async def _each(ask: Callable[[Any], Awaitable[Any]], parts: Sequence[Any]) -> list[Any]:
    if len(parts) == 1:  # most of the time; a gathering would need a task
        return [await ask(parts[0])]
    return list(await asyncio.gather(*map(ask, parts)))
