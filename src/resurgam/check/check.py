"""Replays every open run of a store against the code on disk, and says what would become of each."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeAlias, TypeVar

from resurgam.check.examined import Edits, Examined, Outcome, Run
from resurgam.check.groups import Report
from resurgam.check.open_runs import Desk
from resurgam.check.pool import Here, Pool, Processes
from resurgam.runtime.definitions.registry import default_registry

T = TypeVar("T")

_BATCH: Final = 25
"""Runs that are handed to a process at once."""

_FEW: Final = 200
"""Runs up to which it is not worth while to start further processes."""

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of runs that are done, and of all runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to check: the open runs of *url*, against the *module* that *load* has imported.

    Further processes call *load* again, so it is a function of a module. *limit*: the newest runs, so many of them.
    """

    url: str
    module: str
    load: Callable[[str], object]
    processes: int = 1
    limit: int | None = None


def check(plan: Plan, progress: Progress) -> Report:
    """Replay the open runs; *progress* is called with the number of runs done and of all."""
    desk = Desk(plan.url, default_registry)
    try:
        there = desk.count()
        total = there if plan.limit is None else min(there, plan.limit)
        report = Report(limited=total < there)
        with _hands(plan, desk, total) as hands:
            done = 0
            for examined in hands.map(_look_at, _batches(desk.runs(plan.limit))):
                done += len(examined)
                progress(done, max(done, total))
                for one in examined:
                    report.add(one)
            for edits, runs in report.trials():
                parts = ((edits, batch) for batch in _batches(runs))
                report.judge(edits, [pair for pairs in hands.map(_try_out, parts) for pair in pairs])
    finally:
        desk.close()
    return report


def _hands(plan: Plan, desk: Desk, total: int) -> Pool:
    if plan.processes == 1 or total <= _FEW:
        return Here(desk)
    return Processes(plan.processes, plan.url, plan.module, plan.load)


def _look_at(desk: Desk, runs: Sequence[Run]) -> list[Examined]:
    return desk.look_at(runs)


def _try_out(desk: Desk, part: tuple[Edits, Sequence[Run]]) -> list[tuple[Run, Outcome]]:
    return desk.try_out(*part)


def _batches(found: Iterable[T]) -> Iterator[list[T]]:
    coming = iter(found)
    while batch := list(islice(coming, _BATCH)):
        yield batch
