"""Answer queries of clients that do not have the workflow's code, from the committed log.

The instance need not be held, and nothing of it changes. An error while a query is answered is its answer.
"""

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from resurgam.core import event as events
from resurgam.core.brain import Brain, find_brain
from resurgam.core.errors import NotFound
from resurgam.core.failure import capture, in_user_code
from resurgam.runtime.loop.outside_task import run_outside_task
from resurgam.store.protocol import Store
from resurgam.store.records import QueryResult, QueryTask
from resurgam.worker.tasks import log_failure
from resurgam.worker.watchdog import Watchdog


class _Replay(msgspec.Struct, frozen=True):
    """Names the instance to the watchdog while its code runs for a query."""

    started: events.Started
    delivered_seq: int = 0


class QueryRunner:
    """Answers queries by the brain of the instance's kind."""

    def __init__(self, store: Store, brains: Mapping[str, Brain], watchdog: Watchdog) -> None:
        self._store = store
        self._brains = brains
        self._watchdog = watchdog

    async def run(self, task: QueryTask) -> None:
        """Answer a query; if the store fails, another worker may answer it once its lease expires."""
        try:
            log = await self._store.read(task)
            await self._store.queries.complete([await run_outside_task(lambda: self._answer(task, log))])
        except Exception as error:  # noqa: BLE001 -- see above
            log_failure(f"the store failed at query {task.name!r} of execution {task.execution_id}", error)

    def _answer(self, task: QueryTask, log: Sequence[events.Event]) -> QueryResult:
        try:
            started = log[0] if log else None
            if not isinstance(started, events.Started):
                raise NotFound(f"execution {task.execution_id} is not in the store any more")
            brain = find_brain(self._brains, started.kind)
            result = self._watchdog.run(_Replay(started), brain.answer, log, task.name, task.input)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 -- what a handler raises is its answer
            return QueryResult(query_id=task.query_id, failure=capture(in_user_code(error)))
        return QueryResult(query_id=task.query_id, result=result)
