"""The activity slots of a worker: attempts that run now, and their results on the way to the store."""

import asyncio
import logging
import sys
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextvars import Context, copy_context
from typing import Any, Final

import msgspec

from resurgam.core import event as events
from resurgam.core.clock import Clock
from resurgam.core.errors import StoreError, WriteRejected
from resurgam.core.failure import capture
from resurgam.core.outcome import ActivityRequest
from resurgam.core.typename import type_name
from resurgam.runtime.loop.outside_task import TICKS_OUTSIDE_TASKS
from resurgam.store.protocol import Store
from resurgam.store.records import Accepted, ActivityResult, ActivityTask, Commit, Lease, Refused, Release
from resurgam.worker.attempts import ActivityRunner, Unfit
from resurgam.worker.fair_share import ClaimWindow, fair_share
from resurgam.worker.heartbeat import Result, RunningAttempt
from resurgam.worker.leases import LeaseKey, Leases
from resurgam.worker.presence import Presence
from resurgam.worker.tasks import RETRY_DELAY, Grace, Tasks, cancel_all, log_failure, sleep

logger = logging.getLogger("resurgam.worker")

_NONE: Final[frozenset[int]] = frozenset()
_STOPPED: Final = "the worker was stopped"

_LEFT: Final = 1.0
"""Seconds after which an attempt that does not fit this worker is offered again."""

_CLAIM_PAUSE: Final = 0.2
"""Seconds for which this worker claims no activity then, so that others come first."""

_REMEMBERED: Final = 1000
"""Activities that were left to others and are remembered, to know since when."""

_LEFT_FOR: Final = 600_000
"""Milliseconds for which this worker leaves an attempt to others before it fails: they may not have the code either, but one
that has it may be busy for minutes."""


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
        self._tasks = Tasks(on_end=lambda _: self.on_free())
        self._running: dict[asyncio.Task[Result], RunningAttempt] = {}
        self._reserved = 0
        # Attempts run in the context that the worker was made in, not in that of the call which happened to start them.
        self._context = copy_context()
        self.closed = False
        self._drops_results = False
        self.on_free: Callable[[], None] = lambda: None
        # Whether the worker's own task is cancelled too: then a program cancels every task of its loop, and no attempt did
        # that from within.
        self.is_cancelled: Callable[[], bool] = lambda: False
        # Since when each activity is left to workers of another build.
        self._left: dict[tuple[str, int, int], int] = {}
        leases.before_renewal = self._lease_reporting
        runner.leaves = self._leaves

    def __len__(self) -> int:
        return len(self._running) + len(self._tasks)

    @property
    def free(self) -> int:
        """The number of attempts that may be started."""
        return 0 if self.closed else max(0, self._limit - self._reserved - len(self._running))

    @property
    def in_use(self) -> int:
        """The number of attempts that run."""
        return len(self._running)

    @property
    def running(self) -> Collection[RunningAttempt]:
        """The attempts that run, in the order in which they started."""
        return self._running.values()

    @property
    def claimable(self) -> int:
        """The number of activities that may be claimed from the queues now: fewer than *free* if others serve them too."""
        return self.free if self._presence.alone else min(self.free, self._window.size)

    @property
    def refill_at(self) -> int | None:
        """When more may be claimed though no attempt ends; None if time alone does not change it."""
        return self._window.refill_at if self.free and not self.claimable else None

    def reserve_share(self, requests: Sequence[ActivityRequest]) -> frozenset[int]:
        """Reserve slots for this worker's share of the activities of a commit; return the refs of those that got one.

        None that outlives its instance is among them: it may have its answer from elsewhere, while it runs here, and the
        store must know the first. So it has a row of its own, and its results do not go into commits of its instance. Nor is
        one that this worker does not know: a worker of another build may.
        """
        if not requests:
            return _NONE
        queues = self._queues
        if len(requests) == 1 and self._presence.alone:
            # The fast path of a chain.
            [request] = requests
            if request.queue not in queues or request.outlives or not self._runner.knows(request):
                return _NONE
            if self.closed or self._reserved + len(self._running) >= self._limit:
                return _NONE
            self._reserved += 1
            return frozenset((request.ref,))
        mine = [one for one in requests if not one.outlives and self._runner.knows(one)]
        if self._presence.alone:
            share = [request.ref for request in mine if request.queue in queues]
        else:
            share = fair_share(mine, queues, self._presence.workers_of)
        reserved = self.reserve(len(share))
        return frozenset(share if reserved == len(share) else share[:reserved])

    def reserve(self, wanted: int) -> int:
        """Reserve up to *wanted* free slots for attempts that are being claimed; return how many."""
        reserved = min(wanted, self.free)
        self._reserved += reserved
        return reserved

    def unreserve(self, reserved: int) -> None:
        """Free reserved slots; start what was claimed before the next await, or another claim takes the slots."""
        self._reserved -= reserved

    def start(self, task: ActivityTask, on_end: Callable[[RunningAttempt], None], since: int) -> RunningAttempt:
        """Start an attempt that was claimed at *since*.

        *on_end* gets it when it has ended, with its event, or None if it was cancelled.
        """
        attempt = RunningAttempt(self._clock, task, on_end, self._runner.max_payload, since)
        if attempt.has_lease:
            # Before the attempt starts: a tick that does not yield may run first.
            self._leases.keep(attempt.key, attempt)
        if not self._presence.alone:
            self._window.take()
        attempt.running = running = _create_task(
            self._runner.run(attempt, self._completed), task.request.name, self._context.copy()
        )
        self._running[running] = attempt
        running.add_done_callback(self._ended)
        return attempt

    def _completed(self, attempt: RunningAttempt, event: Result) -> None:
        """Take in a result inside the task of its attempt, where a tick may run inside a task.

        That saves an iteration of the loop. But a task that was cancelled may still end without its result, and one that
        is in its first step as it is made must not begin the next attempt: a chain would recurse.
        """
        running = attempt.running
        if TICKS_OUTSIDE_TASKS or running is None or running.cancelling():
            return  # `_ended` takes it in
        running.remove_done_callback(self._ended)
        attempt.event = event
        # The context of the attempt is that of its code.
        self._context.copy().run(self._end, running, attempt)

    def _ended(self, running: "asyncio.Task[Result]") -> None:
        """Take in how an attempt has ended; in a plain callback of the loop, outside of any task, so a tick may run."""
        attempt = self._running[running]
        if running.cancelled():
            if not (self.closed or attempt.abandoned or self.is_cancelled()):
                attempt.event = self._runner.cancelled_from_within(attempt.task)
        elif isinstance(error := running.exception(), Unfit):
            pass  # it is left to others
        elif error is not None:
            log_failure(f"running activity {attempt.task.request.name!r} failed", error)
        else:
            attempt.event = running.result()
        self._end(running, attempt)

    def _end(self, running: "asyncio.Task[Result]", attempt: RunningAttempt) -> None:
        """Free the slot, then call back, as that may want a slot."""
        del self._running[running]
        if not self._presence.alone:
            self._window.give_back()
        attempt.on_end(attempt)
        # The context of the task refers to the attempt: in a circle, only the garbage collector would free them.
        attempt.running = None
        self.on_free()

    def run(self, task: ActivityTask) -> None:
        """Run an attempt that was claimed from a queue, and complete it in the store."""
        self.start(task, self._complete_or_release, self._clock.now())

    def _complete_or_release(self, attempt: RunningAttempt) -> None:
        if attempt.event is not None:
            self.complete_soon(attempt.result())
        elif attempt.running is not None and not attempt.running.cancelled():
            self.give_up(attempt, attempt.running.exception())

    def give_up(self, attempt: RunningAttempt, error: BaseException | None) -> None:
        """Release the lease of an attempt that was lost by an error of the worker, so that it is delivered again."""
        # Dropped first: if the release fails too, the lease must expire by itself.
        self._leases.drop(attempt.key)
        if isinstance(error, Unfit):
            self._tasks.spawn(self._leave(attempt, error), "attempt for another build")
            return
        self._tasks.spawn(self._store.release([Release(lease=attempt.lease(), failed=repr(error))]), "release")

    async def _leaves(self, attempt: RunningAttempt) -> bool:
        """Whether to leave an attempt that does not fit this worker to one of another build, in a rolling deployment.

        Not one whose beginning is recorded in a log: each delivery would be one more entry there.
        """
        task = attempt.task
        if not attempt.has_lease or task.request.starts is not None or self.closed:
            return False
        key = task.execution_id, task.request.ref, task.attempt
        since = self._left.get(key, attempt.since)
        if self._clock.now() - since > _LEFT_FOR or not await self._presence.has_other_builds(task.request.queue):
            self._left.pop(key, None)
            return False
        if key not in self._left and len(self._left) >= _REMEMBERED:
            del self._left[next(iter(self._left))]  # the other build has probably long taken the oldest
        self._left[key] = since
        return True

    async def _leave(self, attempt: RunningAttempt, error: Unfit) -> None:
        """Release an attempt after a moment; it counts as never delivered."""
        task = attempt.task
        # It is claimed every other second; the first time is enough for most readers.
        again = self._left.get((task.execution_id, task.request.ref, task.attempt), 0) < attempt.since
        logger.log(
            logging.DEBUG if again else logging.INFO,
            "activity %r of workflow %s is left to a worker of another build: %s",
            *(task.request.name, task.entity_id, error.__cause__),
        )
        try:
            await sleep(self._clock, _LEFT)
        finally:  # also if the worker stops meanwhile: the lease is not among those that it releases then
            await self._store.release([Release(lease=attempt.lease())])
        # The release wakes this worker first, and it would claim the activity again.
        reserved = self.reserve(self.free)
        try:
            await sleep(self._clock, _CLAIM_PAUSE)
        finally:
            self.unreserve(reserved)
            self.on_free()

    def _lease_reporting(self) -> None:
        """Give a lease of its own to each attempt that has sent a heartbeat: the store keeps the details with it."""
        for attempt in self._running.values():
            if not attempt.has_lease and attempt.heartbeat_at is not None:
                self.lease_separately(attempt)

    def lease_separately(self, attempt: RunningAttempt) -> None:
        """Renew the lease of an attempt by itself, where the lease on its instance does not cover it any more."""
        attempt.has_lease = True
        self._leases.keep(attempt.key, attempt)

    def complete_soon(self, result: ActivityResult) -> "asyncio.Task[None]":
        """Complete an attempt in the store, in a task of its own."""
        return self._tasks.spawn(self.complete(result), "result")

    def release_soon(self, parts: Sequence[Release]) -> None:
        """Release leases, in a task of its own."""
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
        self._leases.drop(key_of(result))
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
        self._leases.drop(key_of(result))
        reason = f"the store cannot write any answer of the activity (entry {result.event.ref}): {error}"
        logger.error("an activity is a dead letter: %s", reason)
        await self._store.release([Release(lease=lease_of(result), failed=reason, final=True)])

    async def finish(self, grace: Grace) -> None:
        """Wait for all attempts within *grace*, then cancel the rest; their leases stay listed, to be released."""
        while len(self) and not grace.is_over:
            await grace.wait([*self._running, *self._tasks])
            await asyncio.sleep(0)  # an attempt that has ended may be completed by a task
        left = list(self._running.values())
        for attempt in left:
            attempt.abandoned = True
        await cancel_all(self._running)
        await self._tasks.finish()
        await self._runner.close()
        await self._leases.keep_details()
        await self._give_back_counted([attempt for attempt in left if attempt.event is None])

    async def _give_back_counted(self, attempts: Sequence[RunningAttempt]) -> None:
        """Give attempts back whose deliveries count; those of all others are undone when their leases are released.

        They count if the beginning is recorded in a log, and if the activity must not begin twice: the next worker then
        sees that it has begun.
        """
        counted = [
            one for one in attempts if one.task.request.starts is not None or not self._runner.redelivers(one.task)
        ]
        if counted:
            await self._store.release([Release(lease=attempt.lease(), failed=_STOPPED) for attempt in counted])
        for attempt in counted:
            self._leases.drop(attempt.key)

    def close(self) -> None:
        """Complete no more results: the leases of all attempts are released, and the store may be closed."""
        self._drops_results = True


def claimed_by(commit: Commit) -> list[Release]:
    """Return the releases of everything that a commit may have claimed; it has epoch 0 if the instance's lease covers it."""
    epoch = 0 if commit.covers else 1
    return [
        Release(lease=Lease(entity_id=commit.entity_id, execution_id=commit.execution_id, epoch=epoch, ref=ref))
        for ref in commit.eager
    ]


def lease_of(result: ActivityResult) -> Lease:
    """Return the lease of the attempt that a result belongs to."""
    return Lease(entity_id=result.entity_id, execution_id=result.execution_id, epoch=result.epoch, ref=result.event.ref)


def key_of(result: ActivityResult) -> LeaseKey:
    """Return the key of that lease."""
    return result.execution_id, result.event.ref, result.epoch


if sys.version_info >= (3, 12):

    def _create_task(run: Coroutine[Any, Any, Result], name: str, context: Context) -> "asyncio.Task[Result]":
        loop = asyncio.get_running_loop()
        if loop.get_task_factory() is not None:
            return loop.create_task(run, name=name, context=context)
        # Its first step runs at once, and most attempts that do nothing but compute end with it.
        return asyncio.Task(run, loop=loop, name=name, context=context, eager_start=True)

else:

    def _create_task(run: Coroutine[Any, Any, Result], name: str, context: Context) -> "asyncio.Task[Result]":
        return asyncio.get_running_loop().create_task(run, name=name, context=context)
