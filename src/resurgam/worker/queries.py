"""Answers the questions of those who do not have a workflow's code: by replay of what is committed, beside all turns.

Nobody need hold the instance, and nothing of it changes. Whatever goes wrong with a question is its answer.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from resurgam.core import event as events
from resurgam.core.errors import NotFound
from resurgam.core.failure import capture, in_user_code
from resurgam.runtime.definitions.settings import Settings
from resurgam.runtime.loop.outside_task import run_outside_task
from resurgam.runtime.registry import Registry
from resurgam.runtime.rehearsal import query
from resurgam.store.protocol import Store
from resurgam.store.records import QueryResult, QueryTask
from resurgam.worker.tasks import complain
from resurgam.worker.watchdog import Watchdog


@dataclass(frozen=True, slots=True)
class _Replay:
    """What the watchdog is told of the code that runs to answer a question."""

    started: events.WorkflowStarted
    entry: int = 0


class Questions:
    """Answers one question at a time, by the code that is registered here."""

    def __init__(self, store: Store, registry: Registry, watchdog: Watchdog, max_payload: int) -> None:
        self._store = store
        self._registry = registry
        self._watchdog = watchdog
        self._settings = Settings(max_payload=max_payload)

    async def answer(self, question: QueryTask) -> None:
        """Answer a question; should the store fail, whoever asked may be answered by another worker."""
        try:
            log = await self._store.read(question.execution_id)
            await self._store.queries.complete([await run_outside_task(lambda: self._replay(question, log))])
        except Exception as error:  # noqa: BLE001 -- whatever it is, the lease of the question runs out
            complain(f"the store failed at question {question.name!r} of execution {question.execution_id}", error)

    def _replay(self, question: QueryTask, log: Sequence[events.Event]) -> QueryResult:
        try:
            started = log[0] if log else None
            if not isinstance(started, events.WorkflowStarted):
                raise NotFound(f"execution {question.execution_id} is not here any more")
            workflow = self._registry.workflows.find(started.name)
            result, _ = self._watchdog.run(
                _Replay(started), query.ask, workflow, log, question.name, question.input, self._settings
            )
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 -- what a handler raises is its answer
            return QueryResult(query_id=question.query_id, failure=capture(in_user_code(error)))
        return QueryResult(query_id=question.query_id, result=result)
