"""A running attempt: its heartbeats, what its own code can ask of it, and its timeouts."""

import asyncio
from collections.abc import Callable
from typing import Final

from msgspec import Raw
from msgspec.structs import replace

from resurgam.core import event as events
from resurgam.core.clock import Clock
from resurgam.core.codec import MAX_PAYLOAD
from resurgam.core.identity import execution_of
from resurgam.core.outcome import ActivityRequest
from resurgam.runtime.definitions.info import ActivityInfo, read_details
from resurgam.store.records import ActivityResult, ActivityTask, Lease
from resurgam.worker.leases import LeaseKey

_LATE: Final = 1000
"""Milliseconds. A timer that is later than this means that the loop was blocked, or the clock was set."""

Result = events.ActivityCompleted | events.ActivityFailed | events.ActivityRetryScheduled


class RunningAttempt:
    """One attempt, from its start until its result is recorded; *event* is its result, once there is one.

    *running* is its asyncio task. *abandoned*: its result is no longer wanted. *over*: its code has ended. *details* are
    the last it reported. *heard_at* also moves when the worker was unable to receive; *heartbeat_at* is the last
    heartbeat itself. *has_lease*: the activity has a lease of its own; else the one on its instance covers it. *since* is
    the moment of the claim.

    No lock is needed: each field is set as a whole, and the order of writers does not matter.
    """

    __slots__ = (
        *("_clock", "abandoned", "details", "event", "has_lease", "heard_at", "heartbeat_at"),
        *("max_payload", "on_end", "over", "running", "since", "task"),
    )

    ending: Final = False  # the leases of answered attempts are dropped before the commit

    def __init__(
        self,
        clock: Clock,
        task: ActivityTask,
        on_end: "Callable[[RunningAttempt], None]",
        max_payload: int = MAX_PAYLOAD,
        since: int = 0,
    ) -> None:
        self._clock = clock
        self.task = task
        self.on_end = on_end
        self.max_payload = max_payload
        self.since = since
        self.event: Result | None = None
        self.running: asyncio.Task[Result] | None = None
        self.has_lease = task.epoch > 0
        self.details: Raw | None = None
        self.heard_at = 0
        self.heartbeat_at: int | None = None
        self.abandoned = False
        self.over = False

    @property
    def key(self) -> LeaseKey:
        """The key of its own lease."""
        return self.task.execution_id, self.task.request.ref, self.task.epoch

    @property
    def info(self) -> ActivityInfo:
        """The identity of the attempt, as its own code sees it. Few ask for it."""
        identity = identity_of(self.task)
        details = self.task.details
        return identity if details is None else replace(identity, details=read_details(details))

    def cancelled(self) -> bool:
        """Whether its result is no longer wanted."""
        return self.abandoned or self.over

    def beat(self, details: Raw | None) -> None:
        """Record a heartbeat and its details."""
        self.heard_at = self.heartbeat_at = self._clock.now()
        if details is not None:
            self.details = details

    def lease(self) -> Lease:
        """Return the lease on the activity, with the details of the last heartbeat."""
        task = self.task
        return Lease(
            entity_id=task.entity_id,
            execution_id=task.execution_id,
            epoch=task.epoch,
            ref=task.request.ref,
            details=self.details,
            heartbeat_at=self.heartbeat_at,
        )

    def lose(self) -> None:
        """Stop: the result is no longer wanted. One that is cancelled by its own code has failed instead."""
        self.abandoned = True
        if self.running is not None:
            self.running.cancel()

    def result(self) -> ActivityResult:
        """Return the result, as it is handed to the store by itself."""
        task, event = self.task, self.event
        assert event is not None
        # With None the next attempt gets the details of an earlier one.
        again = isinstance(event, events.ActivityRetryScheduled)
        return ActivityResult(
            entity_id=task.entity_id,
            execution_id=task.execution_id,
            epoch=task.epoch,
            event=event,
            details=self.details if again else None,
            heartbeat_at=self.heartbeat_at if again else None,
        )


def identity_of(task: ActivityTask) -> ActivityInfo:
    """Return the identity of an attempt, without the details of earlier ones."""
    request = task.request
    return ActivityInfo(
        name=request.name,
        entity_id=request.entity_id,
        execution_id=execution_of(request.entity_id, task.attempt, request.workflow_attempt),
        workflow_id=task.entity_id,
        attempt=task.attempt,
        queue=request.queue,
        redelivered=task.deliveries > 0,
    )


class AttemptTimeouts:
    """The timeouts of one attempt: in all, and between heartbeats. *passed* is settled with the error text."""

    def __init__(self, clock: Clock, request: ActivityRequest, attempt: RunningAttempt) -> None:
        self._clock = clock
        self._name = request.name
        self._attempt = attempt
        self._interval = request.heartbeat or 0
        self._loop = asyncio.get_running_loop()
        self.passed: asyncio.Future[str] = self._loop.create_future()
        self._cancels = {}
        attempt.heard_at = now = clock.now()
        if request.timeout:
            message = f"activity {request.name!r} ran longer than its timeout of {request.timeout / 1000:g} s"
            self._cancels["timeout"] = clock.call_at(now + request.timeout, lambda: self._pass(message))
        if self._interval:
            self._check_at(now + self._interval)

    def close(self) -> None:
        """Cancel both timeouts."""
        self.passed.cancel()
        for cancel in self._cancels.values():
            cancel()

    def _pass(self, message: str) -> None:
        if not self.passed.done():
            self.passed.set_result(message)

    def _check_at(self, moment: int) -> None:
        self._cancels["heartbeat"] = self._clock.call_at(moment, lambda: self._check(moment))

    def _check(self, moment: int) -> None:
        if self._clock.now() > moment + _LATE:
            # No heartbeat could be received meanwhile, so the interval starts again.
            self._attempt.heard_at = self._clock.now()
        # A heartbeat that a process has sent by now takes one iteration of the loop to be read.
        self._loop.call_soon(self._pass_if_silent)

    def _pass_if_silent(self) -> None:
        if self.passed.done():
            return
        now = self._clock.now()
        heard_at = self._attempt.heard_at
        if heard_at > now:
            # The clock was set back; do not wait until it has caught up.
            self._attempt.heard_at = heard_at = now
        if (due := heard_at + self._interval) > now:
            self._check_at(due)
        else:
            self._pass(
                f"activity {self._name!r} sent no heartbeat for {self._interval / 1000:g} s, its heartbeat timeout"
            )
