"""List the open runs of a store page by page, and replay them in the process that read them.

The store is opened read-only: no lease is taken and nothing is written, so workers may serve it meanwhile.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from resurgam.check.examined import Edits, Examined, Outcome, Run
from resurgam.check.examiner import Examiner
from resurgam.core import event as events
from resurgam.core.errors import CorruptHistory
from resurgam.core.lifecycle import WORKFLOW
from resurgam.core.state import ENDS, Status
from resurgam.runtime.registry import Registry
from resurgam.runtime.system import SystemClock
from resurgam.store.open import open_inspector
from resurgam.store.records import Query

OPEN: Final = tuple(status for status in Status if not status.terminal)
_PAGE: Final = 1000

Log: TypeAlias = Sequence[events.Event] | CorruptHistory


class OpenRuns:
    """The open runs of a store in one process, and the examiner that has its code."""

    def __init__(self, url: str, registry: Registry) -> None:
        known = registry.workflows
        self.examiner = Examiner(lambda name: known.find(name) if name in known else None)
        self._runner = asyncio.Runner()
        self._inspector = open_inspector(url, SystemClock())

    def close(self) -> None:
        """Close the store."""
        self._runner.run(self._inspector.close())
        self._runner.close()

    def count(self, limit: int | None) -> int:
        """Return how many runs are open, at most *limit*."""
        return sum(1 for _ in self.runs(limit))

    def runs(self, limit: int | None) -> Iterator[Run]:
        """Yield the open runs of workflows, newest first; a run that changes its status meanwhile is not yielded twice."""
        seen: set[str] = set()
        for status in OPEN:
            cursor = None
            while True:
                query = Query(status=status, kind=WORKFLOW, limit=_PAGE, cursor=cursor)
                page = self._runner.run(self._inspector.list(query))
                for found in page.instances:
                    if found.execution_id not in seen and (limit is None or len(seen) < limit):
                        seen.add(found.execution_id)
                        yield Run(found.entity_id, found.execution_id, found.name, status is Status.DIVERGED)
                cursor = page.cursor
                if cursor is None or (limit is not None and len(seen) >= limit):
                    break

    def examine(self, runs: Sequence[Run]) -> list[Examined]:
        """Replay some runs."""
        return [self._examine(run, log) for run, log in self._logs(runs)]

    def _examine(self, run: Run, log: Log) -> Examined:
        if isinstance(log, CorruptHistory):
            return self.examiner.unreadable(run, log)
        if not log or any(type(entry) in ENDS for entry in log[-2:]):  # it closed after it was listed
            return Examined(run=run, outcome=Outcome.ENDED)
        return self.examiner.examine(run, log)

    def try_edits(self, edits: Edits, runs: Sequence[Run]) -> list[tuple[Run, Outcome]]:
        """Replay some runs with edits laid over the code."""
        return [
            (run, Outcome.UNREADABLE if isinstance(log, CorruptHistory) else self.examiner.try_edits(run, log, edits))
            for run, log in self._logs(runs)
        ]

    def _logs(self, runs: Sequence[Run]) -> list[tuple[Run, Log]]:
        async def read() -> list[tuple[Run, Log]]:
            return [(run, await self._log(run)) for run in runs]

        # Read all logs before the replay: workflows must not run inside a task of another loop.
        return self._runner.run(read())

    async def _log(self, run: Run) -> Log:
        try:
            return await self._inspector.history(run)
        except CorruptHistory as error:
            return error
