"""The hands of a worker: attempts of activities that run now, each under its lease."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import msgspec

from resurgam.core import event as events
from resurgam.core.clock import Clock
from resurgam.core.errors import StoreError, WriteRejected
from resurgam.core.failure import capture
from resurgam.core.typename import type_name
from resurgam.store.protocol import Store
from resurgam.store.records import Accepted, ActivityResult, ActivityTask, Commit, Lease, Refused, Release
from resurgam.worker.attempts import ActivityRunner
from resurgam.worker.heartbeat import Heartbeat
from resurgam.worker.leases import Leases
from resurgam.worker.tasks import PAUSE_AFTER_ERROR, Grace, Tasks, complain, pause

logger = logging.getLogger("resurgam.worker")

Tell: TypeAlias = Callable[[ActivityResult | None], None]


class Slots:
    """Runs attempts, at most so many at once."""

    def __init__(self, store: Store, clock: Clock, runner: ActivityRunner, *, leases: Leases, limit: int) -> None:
        self._store = store
        self._clock = clock
        self._runner = runner
        self._leases = leases
        self._limit = limit
        self._tasks = Tasks(on_end=self._ended)
        # The heartbeat of each attempt that runs, and who is to be told of it: one that is cancelled before its first step
        # tells nobody itself.
        self._tells: dict[asyncio.Task[Any], tuple[Heartbeat, Tell]] = {}
        self._reserved = 0
        self.closed = False
        self._over = False
        self.on_free: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def free(self) -> int:
        """How many more attempts may be begun."""
        return 0 if self.closed else max(0, self._limit - self._reserved - len(self._tells))

    def reserve(self, wanted: int) -> int:
        """Keep as many hands free as there are, at most *wanted*, for attempts that the store is asked for now."""
        reserved = min(wanted, self.free)
        self._reserved += reserved
        return reserved

    def unreserve(self, reserved: int) -> None:
        """The store has answered: begin what it gave, without giving way, or others take the hands."""
        self._reserved -= reserved

    def begin(self, task: ActivityTask, tell: Tell) -> "asyncio.Task[None]":
        """Run an attempt and *tell* what came of it to whoever holds the instance; None if it was called off."""
        heartbeat = Heartbeat(self._clock)
        attempt = self._tasks.spawn(self._attempt_and_tell(task, heartbeat), task.request.name)
        self._keep(task, attempt, heartbeat, tell)
        return attempt

    def perform(self, task: ActivityTask) -> None:
        """Run an attempt and tell the store what came of it."""
        heartbeat = Heartbeat(self._clock)
        attempt = self._tasks.spawn(self._perform(task, heartbeat), task.request.name)
        self._keep(task, attempt, heartbeat, lambda _: None)

    def _keep(self, task: ActivityTask, attempt: "asyncio.Task[None]", heartbeat: Heartbeat, tell: Tell) -> None:
        """Keep the lease before the attempt begins: a tick that does not yield may come first."""
        self._tells[attempt] = heartbeat, tell
        lease = Lease(execution_id=task.execution_id, epoch=task.epoch, ref=task.request.ref)
        self._leases.keep(lease, partial(_call_off, attempt, heartbeat), heartbeat)

    def _tell(self, attempt: "asyncio.Task[Any] | None", result: ActivityResult | None) -> None:
        """The hand is free, before whoever is told may ask for one."""
        found = self._tells.pop(attempt, None) if attempt is not None else None
        if found is not None:
            found[1](result)

    def _ended(self, attempt: "asyncio.Task[Any]") -> None:
        self._tell(attempt, None)
        self.on_free()

    def hand_in_soon(self, result: ActivityResult) -> "asyncio.Task[None]":
        """Tell the store what became of an attempt, beside the caller."""
        return self._tasks.spawn(self.hand_in(result), "result")

    def give_back_soon(self, commit: Commit) -> None:
        """Give back what a commit may have claimed whose answer nobody heard."""
        if commit.claim_slots:
            lease = Lease(execution_id=commit.execution_id, epoch=commit.epoch)
            parts = [*claimed_by(commit), *([Release(lease=lease)] if commit.release else ())]
            self._tasks.spawn(self._store.release(parts), "what a commit claimed")

    async def hand_in(self, result: ActivityResult) -> None:
        """Tell the store what became of an attempt; while it is out of reach the result is kept here.

        A result that comes after `close` is dropped: its lease was given back, so another worker repeats the attempt.
        """
        answer: Accepted | Refused | None = None
        while answer is None:
            if self._over:
                return
            try:
                [answer] = await self._store.complete_activities([result])
            except WriteRejected as error:
                smaller = self._without_what_is_rejected(result, error)
                if smaller is None:
                    await self._put_aside(result, error)
                    return
                result = smaller
            except StoreError as error:
                complain(f"the store failed; handing a result in again in {PAUSE_AFTER_ERROR:g} s", error)
                await pause(self._clock, PAUSE_AFTER_ERROR)
        self._leases.drop(lease_of(result))
        if isinstance(answer, Refused):
            logger.warning("result of activity %s is not heard: %s", result.event.ref, answer.reason)

    def _without_what_is_rejected(self, result: ActivityResult, error: WriteRejected) -> ActivityResult | None:
        """Return what to hand in instead of a result that the store can never take; None if nothing is left.

        Details are given up first. A result that cannot be written is then a failure for good, as one that cannot be
        encoded is.
        """
        if result.details is not None:
            return msgspec.structs.replace(result, details=None)
        event = result.event
        if isinstance(event, events.ActivityFailed) and event.failure.type == type_name(WriteRejected):
            return None
        logger.error("the store cannot take the result of activity %s, which fails by it: %s", event.ref, error)
        failed = events.ActivityFailed(
            ref=event.ref, at=self._clock.now(), attempt=event.attempt, failure=capture(error)
        )
        return msgspec.structs.replace(result, event=failed)

    async def _put_aside(self, result: ActivityResult, error: WriteRejected) -> None:
        """Give an activity up of which not even a failure can be written."""
        lease = lease_of(result)
        self._leases.drop(lease)
        reason = f"the store cannot take any answer of the activity (entry {result.event.ref}): {error}"
        logger.error("an activity is put aside: %s", reason)
        await self._store.release([Release(lease=lease, failed=reason, final=True)])

    def put_down(self, result: ActivityResult) -> None:
        """The result is committed: its lease needs no keeping any more."""
        self._leases.drop(lease_of(result))

    async def finish(self, grace: Grace) -> None:
        """Wait for all to end within *grace*, then cancel the rest; their leases stay listed, to be given back."""
        await self._tasks.wait(grace)
        for heartbeat, _ in self._tells.values():
            heartbeat.over = True
        await self._tasks.finish()
        await self._runner.close()
        await self._leases.keep_details()

    def close(self) -> None:
        """Hand in no more results: the leases of all attempts are given back, and the store may be closed."""
        self._over = True

    async def _attempt(self, task: ActivityTask, heartbeat: Heartbeat) -> ActivityResult:
        try:
            event = await self._runner.attempt(task, heartbeat)
        except asyncio.CancelledError:
            if self.closed or heartbeat.over:
                raise
            event = self._runner.cancelled_from_within(task)
        finally:
            heartbeat.over = True
        # None leaves the next attempt what an earlier one has told.
        again = isinstance(event, events.ActivityRetryScheduled)
        # The lease is kept until the result is committed or handed in; a cancelled attempt keeps it too.
        return ActivityResult(
            execution_id=task.execution_id,
            epoch=task.epoch,
            event=event,
            details=heartbeat.details if again else None,
            heartbeat_at=heartbeat.heartbeat_at if again else None,
        )

    async def _attempt_and_tell(self, task: ActivityTask, heartbeat: Heartbeat) -> None:
        result = await self._attempt(task, heartbeat)
        # Told from here, not when the task is done: that would be a turn of the loop later.
        self._tell(asyncio.current_task(), result)

    async def _perform(self, task: ActivityTask, heartbeat: Heartbeat) -> None:
        lease = Lease(execution_id=task.execution_id, epoch=task.epoch, ref=task.request.ref)
        try:
            result = await self._attempt(task, heartbeat)
            self._tell(asyncio.current_task(), result)
            await self.hand_in(result)
        except Exception as error:
            logger.exception("running activity %r failed", task.request.name)
            # Dropped first: should giving it back fail too, it must run out by itself.
            self._leases.drop(lease)
            await self._store.release([Release(lease=lease, failed=repr(error))])


def _call_off(attempt: "asyncio.Task[None]", heartbeat: Heartbeat) -> None:
    """Cancel an attempt that is no longer wanted; one that its own code cancels has failed."""
    heartbeat.over = True
    attempt.cancel()


def claimed_by(commit: Commit) -> list[Release]:
    """Return the releases of all that a commit may have claimed; the first epoch of an activity is its commit's."""
    refs = [activity.ref for activity in commit.outcome.activities]
    return [Release(lease=Lease(execution_id=commit.execution_id, epoch=1, ref=ref)) for ref in refs]


def lease_of(result: ActivityResult) -> Lease:
    """Return the lease that a result was made under."""
    return Lease(execution_id=result.execution_id, epoch=result.epoch, ref=result.event.ref)
