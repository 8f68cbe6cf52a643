"""Advances one claimed instance and commits what came of it, until nothing is left to do for it now."""

import asyncio
import inspect
import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from resurgam.core import event as events
from resurgam.core.clock import Clock
from resurgam.core.errors import NotFound
from resurgam.core.failure import capture, in_user_code
from resurgam.core.outcome import Entry, Outcome
from resurgam.core.state import Status
from resurgam.runtime.callback import from_callback
from resurgam.runtime.execution import Execution
from resurgam.runtime.log import conclude
from resurgam.runtime.recorder import Operation
from resurgam.runtime.registry import Registry
from resurgam.store.protocol import Store
from resurgam.store.records import Claim, Commit, Extended, Lease, News, Refused, Release
from resurgam.worker.leases import Leases
from resurgam.worker.tasks import Tasks

logger = logging.getLogger("resurgam.worker")


@dataclass
class _Turn:
    """One instance in this worker's hands."""

    claim: Claim
    execution: Execution | None = None
    inbox: list[Entry] = field(default_factory=list)
    base_seq: int = 0
    wake: int = 0
    operations: dict[int, asyncio.Future[events.Event]] = field(default_factory=dict)

    @property
    def lease(self) -> Lease:
        claim = self.claim
        return Lease(execution_id=claim.instance.execution_id, epoch=claim.epoch, wake=self.wake)


class InstanceRunner:
    """Advances instances, keeping the coroutines of the most recent ones alive in between."""

    def __init__(
        self, store: Store, registry: Registry, clock: Clock, *, worker: str, tasks: Tasks, leases: Leases, cache: int
    ) -> None:
        self._store = store
        self._registry = registry
        self._clock = clock
        self._worker = worker
        self._tasks = tasks
        self._leases = leases
        self._cache: OrderedDict[str, Execution] = OrderedDict()
        self._cache_size = cache

    async def serve(self, claim: Claim) -> None:
        """Advance a claimed instance until its lease is released. A failure here counts against the instance only."""
        turn = _Turn(claim, inbox=list(claim.inbox), base_seq=claim.instance.last_seq, wake=claim.wake)
        this = asyncio.current_task()
        assert this is not None
        self._leases.keep(turn.lease, this.cancel)
        try:
            await self._serve(turn)
        except Exception as error:
            logger.exception("advancing workflow %r (%s) failed", claim.instance.name, claim.instance.entity_id)
            await self._put_away(turn)
            await self._store.release([Release(lease=turn.lease, failed=repr(error))])
        except asyncio.CancelledError:
            await self._put_away(turn)
            raise
        finally:
            for running in turn.operations.values():
                running.cancel()
        # A turn that was cancelled keeps its lease listed, for `Worker.stop` to give back.
        self._leases.drop(turn.lease)

    async def forget_all(self) -> None:
        """Put every cached coroutine away."""
        while self._cache:
            _, execution = self._cache.popitem()
            await from_callback(execution.close)

    async def _serve(self, turn: _Turn) -> None:
        instance = turn.claim.instance
        if instance.status.terminal:
            log = await self._store.read(instance.execution_id)
            await self._commit(turn, conclude(log, turn.inbox, self._clock.now()), release=True)
            return
        try:
            execution = turn.execution = await self._load(turn)
        except NotFound as missing:
            await self._commit(turn, self._unknown(turn, missing), release=True)
            return
        while await self._advance(turn, execution):
            pass

    async def _load(self, turn: _Turn) -> Execution:
        """Return the live coroutine, if it stands where the store says; else build one from the log."""
        instance = turn.claim.instance
        cached = self._cache.pop(instance.execution_id, None)
        if cached is not None:
            if cached.last_seq == instance.last_seq:
                return cached
            await from_callback(cached.close)
        workflow = self._registry.workflows.find(instance.name)
        return Execution(workflow, await self._store.read(instance.execution_id))

    async def _advance(self, turn: _Turn, execution: Execution) -> bool:
        """Advance once and commit; whether the instance is still in hand."""
        now = self._clock.now()
        inbox = turn.inbox
        outcome = await from_callback(lambda: execution.advance(inbox, now, worker=self._worker))
        consumed = set(outcome.consumed)
        turn.inbox = [entry for entry in inbox if entry.id is not None and entry.id not in consumed]
        going_on = outcome.status is Status.RUNNING and bool(turn.inbox or turn.operations or execution.wants_more())
        if not await self._commit(turn, outcome, release=not going_on):
            await self._put_away(turn)
            return False
        if not going_on:
            await self._keep(turn, execution, outcome)
            return False
        await self._operate(turn, execution)
        return True

    async def _commit(self, turn: _Turn, outcome: Outcome, *, release: bool) -> bool:
        """Commit an outcome; whether it was accepted."""
        commit = Commit(
            execution_id=turn.claim.instance.execution_id,
            epoch=turn.claim.epoch,
            base_seq=turn.base_seq,
            wake=turn.wake,
            outcome=outcome,
            worker=self._worker,
            release=release,
        )
        [answer] = await self._store.commit([commit])
        if isinstance(answer, Refused):
            logger.warning("commit of workflow %s refused: %s", turn.claim.instance.entity_id, answer.reason)
            return False
        for withdrawal in outcome.withdrawals:
            if withdrawal.answered:
                self._leases.revoke(commit.execution_id, withdrawal.ref)
        turn.base_seq += len(outcome.events)
        turn.wake = answer.wake
        turn.inbox += answer.inbox
        return True

    async def _keep(self, turn: _Turn, execution: Execution, outcome: Outcome) -> None:
        """Keep the coroutine for the next claim, and put away the one that has waited longest."""
        if outcome.status is not Status.RUNNING or self._cache_size == 0:
            await self._put_away(turn)
            return
        self._cache[turn.claim.instance.execution_id] = execution
        while len(self._cache) > self._cache_size:
            _, oldest = self._cache.popitem(last=False)
            await from_callback(oldest.close)

    async def _put_away(self, turn: _Turn) -> None:
        if turn.execution is not None:
            await from_callback(turn.execution.close)

    # Operations.

    async def _operate(self, turn: _Turn, execution: Execution) -> None:
        """Begin the side effects whose commands are committed now, and wait until there is something to deliver."""
        for ref in [ref for ref in turn.operations if not execution.is_open(ref)]:
            turn.operations.pop(ref).cancel()
        for operation in execution.take_operations():
            if inspect.iscoroutinefunction(operation.function):
                attempt = self._tasks.spawn(self._run(operation), f"operation {operation.name}")
                turn.operations[operation.ref] = attempt
            else:
                turn.inbox.append(Entry(None, await self._run(operation)))
        if turn.operations and not turn.inbox and not execution.wants_more():
            await self._first_news(turn)

    async def _first_news(self, turn: _Turn) -> None:
        """Wait until an operation has ended, or something has come into the inbox of the held instance."""
        watch = News(execution_id=turn.claim.instance.execution_id, wake=turn.wake)
        news = self._tasks.spawn(self._store.wait(watch), "news")
        try:
            await asyncio.wait({news, *turn.operations.values()}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
        for ref, running in list(turn.operations.items()):
            if running.done():
                del turn.operations[ref]
                turn.inbox.append(Entry(None, running.result()))
        [answer] = await self._store.extend([turn.lease])
        if isinstance(answer, Extended):
            turn.wake = answer.wake
            turn.inbox += answer.inbox

    async def _run(self, operation: Operation) -> events.Event:
        try:
            value = operation.function(*operation.args)
            value = await value if inspect.isawaitable(value) else value
            result = operation.result.check(value, f"result of operation {operation.name!r}")
        except Exception as error:  # noqa: BLE001 -- whatever the operation raises is its answer
            return events.OperationFailed(ref=operation.ref, at=self._clock.now(), failure=capture(in_user_code(error)))
        return events.OperationCompleted(ref=operation.ref, at=self._clock.now(), result=result)

    def _unknown(self, turn: _Turn, missing: NotFound) -> Outcome:
        """Park an instance whose workflow this worker does not know; another worker may."""
        instance = turn.claim.instance
        logger.error("workflow %s is parked: %s", instance.entity_id, missing)
        entries: Sequence[events.Event] = ()
        if instance.parked != str(missing):
            entries = (
                events.WorkflowDiverged(
                    seq=turn.base_seq + 1, at=self._clock.now(), diagnosis=str(missing), worker=self._worker
                ),
            )
        return Outcome(events=tuple(entries), status=Status.DIVERGED)
