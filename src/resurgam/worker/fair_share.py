"""Share activities between workers that serve the same queue.

A commit claims at most the worker's share of what it schedules (`fair_share`). What waits in a queue is claimed at the
pace of `ClaimWindow`, so that the other workers have had their turn before one of them claims the rest. A worker that
is alone uses neither.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Final

from resurgam.core.clock import Clock
from resurgam.core.outcome import ActivityRequest

BATCH: Final = 8
"""Activities that a worker may claim at once. A few: an attempt may keep a core busy for minutes."""

REFILL: Final = 50
"""Milliseconds after which it may claim a batch more. Other workers are woken within 10."""


def fair_share(
    requests: Sequence[ActivityRequest], queues: Collection[str], workers_of: Callable[[str], int]
) -> list[int]:
    """Return the refs of activities that a worker of *queues* may claim: of each queue the first, its part rounded up."""
    counts = Counter(request.queue for request in requests)
    left = {queue: -(-counts[queue] // workers_of(queue)) for queue in queues}
    share = []
    for request in requests:
        if left.get(request.queue, 0):
            left[request.queue] -= 1
            share.append(request.ref)
    return share


class ClaimWindow:
    """How many activities a worker with peers may claim now: a batch, another one each `REFILL`, one for each that ended.

    Activities that a commit has claimed count too, and may leave a debt.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open = BATCH
        self._refilled_at = clock.now()

    @property
    def size(self) -> int:
        """How many may be claimed now."""
        now = self._clock.now()
        refills = max(0, now - self._refilled_at) // REFILL
        if refills or now < self._refilled_at:  # the clock was set back
            self._open = min(BATCH, self._open + refills * BATCH)
            self._refilled_at = now
        return max(0, self._open)

    @property
    def refill_at(self) -> int:
        """The moment of the next refill."""
        return self._refilled_at + REFILL

    def take(self) -> None:
        """Count an activity that begins."""
        _ = self.size  # first the refills of the time before, which must not pay for what begins now
        self._open -= 1

    def give_back(self) -> None:
        """Count an activity that has ended."""
        self._open = min(BATCH, self._open + 1)
