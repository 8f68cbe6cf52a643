"""The heartbeats of a running attempt, and the timeouts of attempts."""

import asyncio
from typing import Final

from msgspec import Raw

from resurgam.core.clock import Clock
from resurgam.core.outcome import ActivityRequest
from resurgam.runtime.definitions.info import Attempt

_LATE: Final = 1000
"""Milliseconds. A timer that is later than this means that the loop was blocked, or the clock was set."""


class Heartbeat(Attempt):
    """The heartbeats of one attempt. *abandoned*: its result is no longer wanted. *details* are the last it reported.

    *heard_at* also moves when the worker was unable to receive; *heartbeat_at* is the last heartbeat itself.

    No lock is needed: each field is set as a whole, and the order of writers does not matter.
    """

    __slots__ = ("_clock", "abandoned", "details", "heard_at", "heartbeat_at")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.details: Raw | None = None
        self.heard_at = 0
        self.heartbeat_at: int | None = None
        self.abandoned = False

    def cancelled(self) -> bool:
        """Whether its result is no longer wanted."""
        return self.abandoned

    def beat(self, details: Raw | None) -> None:
        """Record a heartbeat and its details."""
        self.heard_at = self.heartbeat_at = self._clock.now()
        if details is not None:
            self.details = details


class AttemptTimeouts:
    """The timeouts of one attempt: in all, and between heartbeats. *passed* is settled with the error text."""

    def __init__(self, clock: Clock, request: ActivityRequest, heartbeat: Heartbeat) -> None:
        self._clock = clock
        self._name = request.name
        self._heartbeat = heartbeat
        self._interval = request.heartbeat or 0
        self._loop = asyncio.get_running_loop()
        self.passed: asyncio.Future[str] = self._loop.create_future()
        self._cancels = {}
        heartbeat.heard_at = now = clock.now()
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
            self._heartbeat.heard_at = self._clock.now()
        # A heartbeat that a process has sent by now takes one iteration of the loop to be read.
        self._loop.call_soon(self._pass_if_silent)

    def _pass_if_silent(self) -> None:
        if self.passed.done():
            return
        now = self._clock.now()
        heard_at = self._heartbeat.heard_at
        if heard_at > now:
            # The clock was set back; do not wait until it has caught up.
            self._heartbeat.heard_at = heard_at = now
        if (due := heard_at + self._interval) > now:
            self._check_at(due)
        else:
            self._pass(
                f"activity {self._name!r} sent no heartbeat for {self._interval / 1000:g} s, its heartbeat timeout"
            )
