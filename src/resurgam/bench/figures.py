"""The measured figures and the instruments: percentiles, memory, rounds, statements."""

import contextlib
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from resurgam.store.protocol import Store

PATIENCE = 60.0
"""Seconds after which no further round of a workload is started."""


class Raw(msgspec.Struct, frozen=True, kw_only=True):
    """The limit without an engine: *p50* in seconds for one *of*, *rate* in steps per second."""

    of: str
    p50: float
    rate: float | None = None


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one workload. Times are in seconds, memory in bytes; None if a figure does not apply.

    *sample* names the thing that p50 and p95 measure; *commits* and *statements*, or *round_trips*, are per step.
    """

    workload: str
    title: str
    sample: str
    samples: int
    p50: float
    p95: float
    rate: float | None = None
    commits: float | None = None
    statements: float | None = None
    round_trips: float | None = None
    raw: Raw | None = None
    rss: int = 0
    peak: int = 0
    level: str | None = None
    more: dict[str, float] = {}


@dataclass
class Count:
    """The statements of a store, without the BEGIN and COMMIT of its transactions; or the round trips to its server."""

    commits: int = 0
    statements: int = 0
    round_trips: int | None = None

    def __sub__(self, other: "Count") -> "Count":
        """Return what was counted beyond *other*."""
        trips = None if self.round_trips is None or other.round_trips is None else self.round_trips - other.round_trips
        return Count(self.commits - other.commits, self.statements - other.statements, trips)

    def wrote(self, statement: str) -> None:
        """Count a statement of the writing connection."""
        self.commits += statement.startswith("COMMIT")
        self.read(statement)

    def read(self, statement: str) -> None:
        """Count a statement of the reading connection; polling for changes does not count."""
        self.statements += not statement.startswith(("BEGIN", "COMMIT", "ROLLBACK", "PRAGMA", "--"))


@contextlib.contextmanager
def counting(store: Store) -> Iterator[Count | None]:
    """Count the statements of a store inside the ``with``, or its round trips; None for a store in memory."""
    from resurgam.store.sqlite.store import SqliteStore  # noqa: PLC0415 -- imported only if a store is used

    flights = getattr(store, "flights", None)  # of a Redis store, which is not imported for those that have none
    if flights is not None:
        count = Count(round_trips=0)
        yield count
        count.round_trips = store.flights - flights  # type: ignore[attr-defined]
        return
    if not isinstance(store, SqliteStore):
        yield None
        return
    count = Count()
    store.database.trace(count.wrote, count.read)
    try:
        yield count
    finally:
        store.database.trace(None, None)


def level_of(store: Store) -> str | None:
    """Return ``PRAGMA synchronous`` of the open file."""
    from resurgam.store.sqlite.store import SqliteStore  # noqa: PLC0415 -- as above

    return store.database.level() if isinstance(store, SqliteStore) else None


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the percentile of samples at *share*, 0.5 for the median."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def rounds(most: int, patience: float = PATIENCE) -> Iterator[int]:
    """Yield the numbers of rounds: *most* of them, fewer if they take too long, at least one."""
    begin = time.perf_counter()
    for number in range(most):
        if number and time.perf_counter() - begin > patience:
            return
        yield number


def sampled(workload: str, title: str, sample: str, samples: Sequence[float]) -> Figures:
    """Return the figures of some samples, with the current memory of this process."""
    return Figures(
        workload=workload,
        title=title,
        sample=sample,
        samples=len(samples),
        p50=percentile(samples, 0.5),
        p95=percentile(samples, 0.95),
        rss=rss(),
        peak=peak(),
    )


def rss() -> int:
    """Return the resident memory of this process."""
    with contextlib.suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
        return pages * resource.getpagesize()
    return peak()


def peak() -> int:
    """Return the peak of the resident memory of this process."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
