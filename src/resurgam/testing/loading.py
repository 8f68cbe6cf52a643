"""Load the instances of a simulation: workflows by their code, flows by the plan in their log."""

from collections.abc import Callable, Iterable, Sequence

from resurgam.core.brain import Brain, LiveInstance
from resurgam.core.event import Started
from resurgam.core.flow_event import FLOW
from resurgam.core.outcome import Entry, Outcome
from resurgam.flows.brain import FlowBrain
from resurgam.flows.catalog import Catalog
from resurgam.flows.expressions import Expressions
from resurgam.flows.steps import step_of, steps_in
from resurgam.flows.validate import validate
from resurgam.runtime.definitions.definition import Workflow
from resurgam.runtime.execution import late_results
from resurgam.runtime.execution.execution import Execution
from resurgam.runtime.registry import Registry
from resurgam.testing.simulated_store import StoredExecution


def catalog_of(registry: Registry, others: Iterable[object] = ()) -> Catalog:
    """Return a catalog with the functions of a registry that are steps, and with other steps."""
    catalog, judge = Catalog(), Expressions()
    for definition in (*steps_in(registry), *map(step_of, others)):
        validate(definition, judge)
        catalog = catalog.put(definition)
    return catalog


class Loader:
    """Build what advances an instance of a simulation: *workflow* is the simulated one, the others are in *registry*.

    Flows that workflows start are planned from *catalog*, by default from the functions of *registry*.
    """

    def __init__(self, workflow: object, registry: Registry, catalog: Catalog | None) -> None:
        self._workflow = workflow if isinstance(workflow, Workflow) else None
        self._registry = registry
        self._flows: Brain = FlowBrain(Expressions(), catalog=catalog_of(registry) if catalog is None else catalog)

    def knows(self, started: Started) -> bool:
        """Whether an instance can be advanced here."""
        own = self._workflow is not None and started.name == self._workflow.name
        return started.kind == FLOW or own or started.name in self._registry.workflows

    def load(self, execution: StoredExecution) -> LiveInstance:
        """Return an instance as its log tells it."""
        started = execution.started
        if started.kind == FLOW:
            return self._flows.load(started.name, execution.log, signal_schemas={}, paused=execution.paused)
        own = self._workflow is not None and started.name == self._workflow.name
        return Execution(self._workflow if own else self._registry.workflows.find(started.name), execution.log)  # type: ignore[arg-type]

    def record_late(self, execution: StoredExecution, entries: Sequence[Entry], clock: int) -> Outcome:
        """Return the commit that records what arrived after the end of an instance."""
        record: Callable[..., Outcome] = (
            self._flows.record_late if execution.started.kind == FLOW else late_results.record
        )
        return record(execution.log, entries, clock)
