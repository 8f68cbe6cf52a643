"""Replay all open runs of a store against the code on disk, and report which would diverge or fail."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeAlias, TypeVar

from resurgam.check.examined import Edits, Examined, Outcome, Run
from resurgam.check.groups import Report
from resurgam.check.open_runs import OpenRuns
from resurgam.check.pool import LocalPool, Pool, ProcessPool
from resurgam.runtime.registry import default_registry

T = TypeVar("T")

_BATCH: Final = 25
"""How many runs a process gets at once."""

_FEW: Final = 200
"""Up to this many runs, starting further processes is not worth it."""

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of runs that are done, and of all runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to check: the open runs of *url*, against the *module* that *load* has imported.

    Further processes call *load* again, so it must be importable. With *limit* only that many runs, the newest, are
    checked.
    """

    url: str
    module: str
    load: Callable[[str], object]
    processes: int = 1
    limit: int | None = None


def check(plan: Plan, progress: Progress) -> Report:
    """Replay the open runs; *progress* is called with the number of runs done and of all."""
    open_runs = OpenRuns(plan.url, default_registry)
    try:
        count = open_runs.count(None if plan.limit is None else plan.limit + 1)
        total = count if plan.limit is None else min(count, plan.limit)
        report = Report(limited=total < count)
        with _pool(plan, open_runs, total) as pool:
            done = 0
            for batch in pool.map(_examine, _batches(open_runs.runs(plan.limit))):
                done += len(batch)
                progress(done, max(done, total))
                for examined in batch:
                    report.add(examined)
            for edits, runs in report.trials():
                parts = ((edits, batch) for batch in _batches(runs))
                report.add_trial(edits, [pair for pairs in pool.map(_try_edits, parts) for pair in pairs])
    finally:
        open_runs.close()
    return report


def _pool(plan: Plan, open_runs: OpenRuns, total: int) -> Pool:
    if plan.processes == 1 or total <= _FEW:
        return LocalPool(open_runs)
    return ProcessPool(plan.processes, plan.url, plan.module, plan.load)


def _examine(open_runs: OpenRuns, runs: Sequence[Run]) -> list[Examined]:
    return open_runs.examine(runs)


def _try_edits(open_runs: OpenRuns, part: tuple[Edits, Sequence[Run]]) -> list[tuple[Run, Outcome]]:
    return open_runs.try_edits(*part)


def _batches(items: Iterable[T]) -> Iterator[list[T]]:
    remaining = iter(items)
    while batch := list(islice(remaining, _BATCH)):
        yield batch
