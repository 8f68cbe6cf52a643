"""The activity slots of a worker: attempts that run now, each under its lease."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec

from resurgam.core import event as events
from resurgam.core.clock import Clock
from resurgam.core.errors import StoreError, WriteRejected
from resurgam.core.failure import capture
from resurgam.core.outcome import ActivityRequest
from resurgam.core.typename import type_name
from resurgam.store.protocol import Store
from resurgam.store.records import Accepted, ActivityResult, ActivityTask, Commit, Lease, Refused, Release
from resurgam.worker.attempts import ActivityRunner
from resurgam.worker.fair_share import ClaimWindow, fair_share
from resurgam.worker.heartbeat import Heartbeat
from resurgam.worker.leases import Leases
from resurgam.worker.presence import Presence
from resurgam.worker.tasks import RETRY_DELAY, Grace, Tasks, log_failure, sleep

logger = logging.getLogger("resurgam.worker")

OnEnd: TypeAlias = Callable[[ActivityResult | None], None]


class Slots:
    """Runs attempts, at most *limit* at once."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        runner: ActivityRunner,
        *,
        leases: Leases,
        presence: Presence,
        limit: int,
    ) -> None:
        self._store = store
        self._clock = clock
        self._runner = runner
        self._leases = leases
        self._queues = presence.queues
        self._limit = limit
        self._presence = presence
        self._window = ClaimWindow(clock)
        self._tasks = Tasks(on_end=self._ended)
        # The heartbeat and the callback of each attempt that runs. The callback is kept here because an attempt that is
        # cancelled before its first step cannot call it.
        self._running: dict[asyncio.Task[Any], tuple[Heartbeat, OnEnd]] = {}
        self._reserved = 0
        self.closed = False
        self._drops_results = False
        self.on_free: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def free(self) -> int:
        """The number of attempts that may be started."""
        return 0 if self.closed else max(0, self._limit - self._reserved - len(self._running))

    @property
    def in_use(self) -> int:
        """The number of attempts that run."""
        return len(self._running)

    @property
    def claimable(self) -> int:
        """The number of activities that may be claimed from the queues now: fewer than *free* if others serve them too."""
        return self.free if self._presence.alone else min(self.free, self._window.size)

    @property
    def refill_at(self) -> int | None:
        """When more may be claimed though no attempt ends; None if time alone does not change it."""
        return self._window.refill_at if self.free and not self.claimable else None

    def reserve_share(self, requests: Sequence[ActivityRequest]) -> frozenset[int]:
        """Reserve slots for this worker's share of the activities of a commit; return the refs of those that got one."""
        if not requests:
            return frozenset()
        queues = self._queues
        if self._presence.alone:
            share = [request.ref for request in requests if request.queue in queues]
        else:
            share = fair_share(requests, queues, self._presence.workers_of)
        return frozenset(share[: self.reserve(len(share))])

    def reserve(self, wanted: int) -> int:
        """Reserve up to *wanted* free slots for attempts that are being claimed; return how many."""
        reserved = min(wanted, self.free)
        self._reserved += reserved
        return reserved

    def unreserve(self, reserved: int) -> None:
        """Free reserved slots; start what was claimed before the next await, or another claim takes the slots."""
        self._reserved -= reserved

    def run_for(self, task: ActivityTask, on_end: OnEnd) -> "asyncio.Task[None]":
        """Run an attempt for a held instance; *on_end* gets its result, or None if it was cancelled."""
        heartbeat = Heartbeat(self._clock)
        attempt = self._tasks.spawn(self._run_and_report(task, heartbeat), task.request.name)
        self._keep(task, attempt, heartbeat, on_end)
        return attempt

    def run(self, task: ActivityTask) -> None:
        """Run an attempt and complete it in the store."""
        heartbeat = Heartbeat(self._clock)
        attempt = self._tasks.spawn(self._run_and_complete(task, heartbeat), task.request.name)
        self._keep(task, attempt, heartbeat, lambda _: None)

    def _keep(self, task: ActivityTask, attempt: "asyncio.Task[None]", heartbeat: Heartbeat, on_end: OnEnd) -> None:
        """Keep the lease before the attempt starts: a tick that does not yield may run first."""
        self._running[attempt] = heartbeat, on_end
        if not self._presence.alone:
            self._window.take()
        lease = Lease(entity_id=task.entity_id, execution_id=task.execution_id, epoch=task.epoch, ref=task.request.ref)
        self._leases.keep(lease, partial(_cancel, attempt, heartbeat), heartbeat)

    def _report(self, attempt: "asyncio.Task[Any] | None", result: ActivityResult | None) -> None:
        """Free the slot, then call the attempt's callback, which may want a slot."""
        found = self._running.pop(attempt, None) if attempt is not None else None
        if found is not None:
            if not self._presence.alone:
                self._window.give_back()
            found[1](result)

    def _ended(self, attempt: "asyncio.Task[Any]") -> None:
        self._report(attempt, None)
        self.on_free()

    def complete_soon(self, result: ActivityResult) -> "asyncio.Task[None]":
        """Complete an attempt in the store, in a task of its own."""
        return self._tasks.spawn(self.complete(result), "result")

    def give_back_soon(self, commit: Commit) -> None:
        """Release what a commit may have claimed whose answer was not received."""
        if commit.eager:
            lease = Lease(entity_id=commit.entity_id, execution_id=commit.execution_id, epoch=commit.epoch)
            parts = [*claimed_by(commit), *([Release(lease=lease)] if commit.release else ())]
            self._tasks.spawn(self._store.release(parts), "release of claimed work")

    async def complete(self, result: ActivityResult) -> None:
        """Complete an attempt in the store; while the store is out of reach the result is kept here.

        A result that comes after `close` is dropped: its lease was released, so another worker repeats the attempt.
        """
        answer: Accepted | Refused | None = None
        while answer is None:
            if self._drops_results:
                return
            try:
                [answer] = await self._store.complete_activities([result])
            except WriteRejected as error:
                smaller = self._smaller_result(result, error)
                if smaller is None:
                    await self._dead_letter(result, error)
                    return
                result = smaller
            except StoreError as error:
                log_failure(f"the store failed to complete an activity; trying again in {RETRY_DELAY:g} s", error)
                await sleep(self._clock, RETRY_DELAY)
        self._leases.drop(lease_of(result))
        if isinstance(answer, Refused):
            logger.warning("the result of activity %s was refused: %s", result.event.ref, answer.reason)

    def _smaller_result(self, result: ActivityResult, error: WriteRejected) -> ActivityResult | None:
        """Return what to write in place of a result that the store rejected; None if nothing is left.

        First the result without its details, then a final failure, as for a result that cannot be encoded.
        """
        if result.details is not None:
            return msgspec.structs.replace(result, details=None)
        event = result.event
        if isinstance(event, events.ActivityFailed) and event.failure.type == type_name(WriteRejected):
            return None
        logger.error("the store cannot write the result of activity %s, which therefore fails: %s", event.ref, error)
        failed = events.ActivityFailed(
            ref=event.ref, at=self._clock.now(), attempt=event.attempt, failure=capture(error)
        )
        return msgspec.structs.replace(result, event=failed)

    async def _dead_letter(self, result: ActivityResult, error: WriteRejected) -> None:
        """Dead-letter an activity of which not even a failure can be written."""
        lease = lease_of(result)
        self._leases.drop(lease)
        reason = f"the store cannot write any answer of the activity (entry {result.event.ref}): {error}"
        logger.error("an activity is a dead letter: %s", reason)
        await self._store.release([Release(lease=lease, failed=reason, final=True)])

    def drop_lease(self, result: ActivityResult) -> None:
        """Stop renewing the lease of an attempt whose result is committed."""
        self._leases.drop(lease_of(result))

    async def finish(self, grace: Grace) -> None:
        """Wait for all attempts within *grace*, then cancel the rest; their leases stay listed, to be released."""
        await self._tasks.wait(grace)
        for heartbeat, _ in self._running.values():
            heartbeat.abandoned = True
        await self._tasks.finish()
        await self._runner.close()
        await self._leases.keep_details()

    def close(self) -> None:
        """Complete no more results: the leases of all attempts are released, and the store may be closed."""
        self._drops_results = True

    async def _attempt(self, task: ActivityTask, heartbeat: Heartbeat) -> ActivityResult:
        try:
            event = await self._runner.attempt(task, heartbeat)
        except asyncio.CancelledError:
            if self.closed or heartbeat.abandoned:
                raise
            event = self._runner.cancelled_from_within(task)
        finally:
            heartbeat.abandoned = True
        # With None the next attempt gets the details of an earlier one.
        again = isinstance(event, events.ActivityRetryScheduled)
        # The lease is kept until the result is committed or completed; a cancelled attempt keeps it too.
        return ActivityResult(
            entity_id=task.entity_id,
            execution_id=task.execution_id,
            epoch=task.epoch,
            event=event,
            details=heartbeat.details if again else None,
            heartbeat_at=heartbeat.heartbeat_at if again else None,
        )

    async def _run_and_report(self, task: ActivityTask, heartbeat: Heartbeat) -> None:
        result = await self._attempt(task, heartbeat)
        # Reported from here, not when the task is done: that would be one iteration of the loop later.
        self._report(asyncio.current_task(), result)

    async def _run_and_complete(self, task: ActivityTask, heartbeat: Heartbeat) -> None:
        lease = Lease(entity_id=task.entity_id, execution_id=task.execution_id, epoch=task.epoch, ref=task.request.ref)
        try:
            result = await self._attempt(task, heartbeat)
            self._report(asyncio.current_task(), result)
            await self.complete(result)
        except Exception as error:
            logger.exception("running activity %r failed", task.request.name)
            # Dropped first: if the release fails too, the lease must expire by itself.
            self._leases.drop(lease)
            await self._store.release([Release(lease=lease, failed=repr(error))])


def _cancel(attempt: "asyncio.Task[None]", heartbeat: Heartbeat) -> None:
    """Cancel an attempt that is no longer wanted; one that is cancelled by its own code has failed."""
    heartbeat.abandoned = True
    attempt.cancel()


def claimed_by(commit: Commit) -> list[Release]:
    """Return the releases of everything that a commit may have claimed; an activity claimed so has epoch 1."""
    return [
        Release(lease=Lease(entity_id=commit.entity_id, execution_id=commit.execution_id, epoch=1, ref=ref))
        for ref in commit.eager
    ]


def lease_of(result: ActivityResult) -> Lease:
    """Return the lease of the attempt that a result belongs to."""
    return Lease(entity_id=result.entity_id, execution_id=result.execution_id, epoch=result.epoch, ref=result.event.ref)
