"""Answers the questions of those who do not have a workflow's code: by replay of what is committed, beside all turns.

Nobody need hold the instance, and nothing of it changes. Whatever goes wrong with a question is its answer.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from resurgam.core import event as events
from resurgam.core.brain import Brain, find_brain
from resurgam.core.errors import NotFound
from resurgam.core.failure import capture, in_user_code
from resurgam.runtime.loop.outside_task import run_outside_task
from resurgam.store.protocol import Store
from resurgam.store.records import QueryResult, QueryTask
from resurgam.worker.tasks import complain
from resurgam.worker.watchdog import Watchdog


@dataclass(frozen=True, slots=True)
class _Replay:
    """What the watchdog is told of the code that runs to answer a question."""

    started: events.Started
    delivered_seq: int = 0


class Questions:
    """Answers one question at a time, by the code that is registered here."""

    def __init__(self, store: Store, brains: Mapping[str, Brain], watchdog: Watchdog) -> None:
        self._store = store
        self._brains = brains
        self._watchdog = watchdog

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
            if not isinstance(started, events.Started):
                raise NotFound(f"execution {question.execution_id} is not here any more")
            brain = find_brain(self._brains, started.kind)
            result = self._watchdog.run(_Replay(started), brain.answer, log, question.name, question.input)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 -- what a handler raises is its answer
            return QueryResult(query_id=question.query_id, failure=capture(in_user_code(error)))
        return QueryResult(query_id=question.query_id, result=result)
