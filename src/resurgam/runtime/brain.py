"""The code brain: instances of kind ``workflow``, each a coroutine of the user's."""

from collections.abc import Collection, Mapping, Sequence

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from resurgam.core.event import Event
from resurgam.core.outcome import Entry, Outcome
from resurgam.runtime.definitions.settings import Settings
from resurgam.runtime.execution import late_results
from resurgam.runtime.execution.execution import Execution
from resurgam.runtime.registry import Registry
from resurgam.runtime.rehearsal import query as queries


class CodeBrain(msgspec.Struct, frozen=True):
    """Builds executions of the workflows in *registry*."""

    registry: Registry
    settings: Settings = msgspec.field(default_factory=Settings)

    def load(
        self,
        name: str,
        log: Sequence[Event],
        *,
        signal_schemas: Mapping[str, Raw],
        paused: bool = False,
        running: Collection[int] = (),
    ) -> Execution:
        """Build an execution from its log; `NotFound` if its workflow is not registered."""
        workflow = self.registry.workflows.find(name)
        settings = replace(self.settings, signal_schemas=signal_schemas) if signal_schemas else self.settings
        execution = Execution(workflow, log, settings)
        if paused:
            execution.pause()
        if running:
            execution.go_on_with(running)
        return execution

    def record_late(self, log: Sequence[Event], inbox: Sequence[Entry], clock: int) -> Outcome:
        """Record what arrived after the end; the workflow's code does not run again."""
        return late_results.record(log, inbox, clock)

    def answer(self, log: Sequence[Event], query: str, input: Raw) -> Raw:
        """Replay the log on a throwaway coroutine and call the handler of *query*."""
        workflow = self.registry.workflows.find(log[0].name or "")
        settings = Settings(max_payload=self.settings.max_payload)
        result, _ = queries.answer_query(workflow, log, query, input, settings)
        return result
