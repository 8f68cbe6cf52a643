"""What a worker hears of a running attempt, what it lets it know, and how long it waits for either."""

import asyncio
from typing import Final

from msgspec import Raw

from resurgam.core.clock import Clock
from resurgam.core.outcome import ActivityRequest
from resurgam.runtime.definitions.info import Attempt

_LATE: Final = 1000
"""Milliseconds. A timer that is later than this tells of a loop that stood still, or a clock that was set."""


class Heartbeat(Attempt):
    """An attempt in a worker's hands. *over*: nobody waits for it any more. *details* is what it has told last.

    *heard_at* also moves when the worker could not listen; *heartbeat_at* is the last heartbeat itself.

    No lock is needed: each field is set whole, and by whom it is set last does not matter.
    """

    __slots__ = ("_clock", "details", "heard_at", "heartbeat_at", "over")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.details: Raw | None = None
        self.heard_at = 0
        self.heartbeat_at: int | None = None
        self.over = False

    def cancelled(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.over

    def beat(self, details: Raw | None) -> None:
        """Hear that it is alive, and how far it has come."""
        self.heard_at = self.heartbeat_at = self._clock.now()
        if details is not None:
            self.details = details


class AttemptTimeouts:
    """How long an attempt may take, and how long it may say nothing. *passed* is settled with what is to be said then."""

    def __init__(self, clock: Clock, request: ActivityRequest, heartbeat: Heartbeat) -> None:
        self._clock = clock
        self._name = request.name
        self._pulse = heartbeat
        self._silence = request.heartbeat or 0
        self._loop = asyncio.get_running_loop()
        self.passed: asyncio.Future[str] = self._loop.create_future()
        self._call_offs = {}
        heartbeat.heard_at = now = clock.now()
        if request.timeout:
            said = f"activity {request.name!r} ran longer than its timeout of {request.timeout / 1000:g} s"
            self._call_offs["timeout"] = clock.call_at(now + request.timeout, lambda: self._pass(said))
        if self._silence:
            self._listen_until(now + self._silence)

    def close(self) -> None:
        """Wait for neither any more."""
        self.passed.cancel()
        for call_off in self._call_offs.values():
            call_off()

    def _pass(self, said: str) -> None:
        if not self.passed.done():
            self.passed.set_result(said)

    def _listen_until(self, moment: int) -> None:
        self._call_offs["heartbeat"] = self._clock.call_at(moment, lambda: self._heard_nothing(moment))

    def _heard_nothing(self, moment: int) -> None:
        if self._clock.now() > moment + _LATE:
            # Nobody could be heard meanwhile, so the attempt has its time again.
            self._pulse.heard_at = self._clock.now()
        # What has come by now, from a process, takes one turn of the loop to be read.
        self._loop.call_soon(self._judge)

    def _judge(self) -> None:
        if self.passed.done():
            return
        now = self._clock.now()
        heard_at = self._pulse.heard_at
        if heard_at > now:
            # The clock was set back; nobody is waited for until it has caught up.
            self._pulse.heard_at = heard_at = now
        if (due := heard_at + self._silence) > now:
            self._listen_until(due)
        else:
            self._pass(
                f"activity {self._name!r} has said nothing for {self._silence / 1000:g} s, its heartbeat timeout"
            )
