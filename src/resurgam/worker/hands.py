"""The hands of a worker: attempts of activities that run now, each under its lease."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakSet

from resurgam.core.clock import Clock
from resurgam.core.errors import StoreError
from resurgam.store.protocol import Store
from resurgam.store.records import Accepted, ActivityResult, ActivityTask, Commit, Lease, Refused, Release
from resurgam.worker.activities import ActivityRunner
from resurgam.worker.leases import Leases
from resurgam.worker.tasks import PAUSE_AFTER_ERROR, Tasks, complain, pause

logger = logging.getLogger("resurgam.worker")


class Hands:
    """Runs attempts, at most so many at once."""

    def __init__(self, store: Store, clock: Clock, runner: ActivityRunner, *, leases: Leases, limit: int) -> None:
        self._store = store
        self._clock = clock
        self._runner = runner
        self._leases = leases
        self._limit = limit
        self._tasks = Tasks(on_end=self._ended)
        # Who is to be told of each attempt that runs. One that is cancelled before its first step tells nobody itself.
        self._tells: dict[asyncio.Task[Any], Callable[[ActivityResult | None], None]] = {}
        self._reserved = 0
        self._called_off: WeakSet[asyncio.Task[object]] = WeakSet()
        self.closed = False
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

    def begin(self, task: ActivityTask, tell: Callable[[ActivityResult | None], None]) -> "asyncio.Task[None]":
        """Run an attempt and *tell* what came of it to whoever holds the instance; None if it was called off."""
        attempt = self._tasks.spawn(self._attempt_and_tell(task), task.request.name)
        self._keep(task, attempt, tell)
        return attempt

    def perform(self, task: ActivityTask) -> None:
        """Run an attempt and tell the store what came of it."""
        self._keep(task, self._tasks.spawn(self._perform(task), task.request.name), lambda _: None)

    def _keep(
        self, task: ActivityTask, attempt: "asyncio.Task[None]", tell: Callable[[ActivityResult | None], None]
    ) -> None:
        """Keep the lease before the attempt begins: a tick that does not yield may come first."""
        self._tells[attempt] = tell
        lease = Lease(execution_id=task.execution_id, epoch=task.epoch, ref=task.request.ref)
        self._leases.keep(lease, partial(self._call_off, attempt))

    def _tell(self, attempt: "asyncio.Task[Any] | None", result: ActivityResult | None) -> None:
        """The hand is free, before whoever is told may ask for one."""
        tell = self._tells.pop(attempt, None) if attempt is not None else None
        if tell is not None:
            tell(result)

    def _ended(self, attempt: "asyncio.Task[Any]") -> None:
        self._tell(attempt, None)
        self.on_free()

    def hand_in_soon(self, result: ActivityResult) -> "asyncio.Task[None]":
        """Tell the store what became of an attempt, beside the caller."""
        return self._tasks.spawn(self.hand_in(result), "result")

    def give_back_soon(self, commit: Commit) -> None:
        """Give back what a commit may have claimed whose answer nobody heard."""
        if commit.hands:
            lease = Lease(execution_id=commit.execution_id, epoch=commit.epoch)
            parts = [*claimed_by(commit), *([Release(lease=lease)] if commit.release else ())]
            self._tasks.spawn(self._store.release(parts), "what a commit claimed")

    async def hand_in(self, result: ActivityResult) -> None:
        """Tell the store what became of an attempt; while it is out of reach the result is kept here."""
        answer: Accepted | Refused | None = None
        while answer is None:
            try:
                [answer] = await self._store.complete_activities([result])
            except StoreError as error:
                complain(f"the store failed; handing a result in again in {PAUSE_AFTER_ERROR:g} s", error)
                await pause(self._clock, PAUSE_AFTER_ERROR)
        self._leases.drop(lease_of(result))
        if isinstance(answer, Refused):
            logger.warning("result of activity %s is not heard: %s", result.event.ref, answer.reason)

    def put_down(self, result: ActivityResult) -> None:
        """The result is committed: its lease needs no keeping any more."""
        self._leases.drop(lease_of(result))

    async def finish(self, deadline: float) -> None:
        """Wait for all to end until *deadline*, then cancel the rest; their leases stay listed, to be given back."""
        await self._tasks.finish(deadline)
        await self._runner.close()

    async def _attempt(self, task: ActivityTask) -> ActivityResult:
        try:
            event = await self._runner.attempt(task)
        except asyncio.CancelledError:
            if self.closed or asyncio.current_task() in self._called_off:
                raise
            event = self._runner.cancelled_from_within(task)
        # The lease is kept until the result is committed or handed in; a cancelled attempt keeps it too.
        return ActivityResult(execution_id=task.execution_id, epoch=task.epoch, event=event)

    async def _attempt_and_tell(self, task: ActivityTask) -> None:
        result = await self._attempt(task)
        # Told from here, not when the task is done: that would be a turn of the loop later.
        self._tell(asyncio.current_task(), result)

    def _call_off(self, attempt: "asyncio.Task[object]") -> None:
        """Cancel an attempt that is no longer wanted; one that its own code cancels has failed."""
        self._called_off.add(attempt)
        attempt.cancel()

    async def _perform(self, task: ActivityTask) -> None:
        lease = Lease(execution_id=task.execution_id, epoch=task.epoch, ref=task.request.ref)
        try:
            result = await self._attempt(task)
            self._tell(asyncio.current_task(), result)
            await self.hand_in(result)
        except Exception as error:
            logger.exception("running activity %r failed", task.request.name)
            # Dropped first: should giving it back fail too, it must run out by itself.
            self._leases.drop(lease)
            await self._store.release([Release(lease=lease, failed=repr(error))])


def claimed_by(commit: Commit) -> list[Release]:
    """Return the releases of all that a commit may have claimed; the first epoch of an activity is its commit's."""
    refs = [activity.ref for activity in commit.outcome.activities]
    return [Release(lease=Lease(execution_id=commit.execution_id, epoch=1, ref=ref)) for ref in refs]


def lease_of(result: ActivityResult) -> Lease:
    """Return the lease that a result was made under."""
    return Lease(execution_id=result.execution_id, epoch=result.epoch, ref=result.event.ref)
