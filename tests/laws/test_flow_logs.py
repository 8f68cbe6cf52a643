"""Laws of the logs of flows: every prefix folds to the live state, every flow comes to its end, and to one outcome."""

from collections import Counter
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laws.random_flows import RandomFlow, flows
from resurgam.core import event as events
from resurgam.core.errors import DefinitionError
from resurgam.flows.errors import ExpressionFailed
from support.flow_simulation import FlowSimulation

CALM = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None, "derandomize": True}
AFTER_THE_END = {
    *("flow_digest_updated", "flow_deactivated", "cancel_requested", "attribute_set", "step_completed", "step_failed"),
    *("work_started", "work_succeeded", "work_failed", "work_not_completed", "work_cancelled", "work_acknowledged"),
    *("comp_started", "comp_retry_scheduled", "comp_succeeded", "comp_failed"),
}
ENDS = {"flow_completed", "flow_failed", "flow_cancelled", "workflow_terminated"}


def simulated(flow: RandomFlow, seed: int, **options: Any) -> FlowSimulation | None:
    """Return a flow that has started; None if it cannot be planned."""
    try:
        return FlowSimulation(
            flow.steps, flow.goals, flow.init, flow.functions, seed=seed, eager=bool(seed % 2), **options
        )
    except (DefinitionError, ExpressionFailed):
        return None


def check_log(run: FlowSimulation) -> None:
    """Check the order of the log of a flow that is deactivated."""
    [end] = [number for number, kind in enumerate(run.types) if kind in ENDS]
    assert set(run.types[end + 1 :]) <= AFTER_THE_END
    assert run.types[end + 1] == "flow_digest_updated"
    assert (run.types.count("flow_deactivated"), run.types[-1]) == (1, "flow_deactivated")
    assert run.types[:2] == ["flow_started", "flow_activated"]


def test_every_prefix_of_a_log_folds_to_the_live_state_whatever_happens() -> None:
    """`FlowSimulation` compares after each entry. Here anything happens to a flow, in any order."""
    counted: Counter[str] = Counter()

    @settings(max_examples=300, **CALM)
    @given(flows(), st.integers(0, 1000), st.lists(st.sampled_from(["pause", "resume", "cancel", "stop"]), max_size=3))
    def law(flow: RandomFlow, seed: int, happenings: list[str]) -> None:
        run = simulated(flow, seed)
        if run is None:
            return
        for happening in happenings:
            for action in run._possible()[: seed % 4]:
                action()
                break
            _happens(run, happening)
        run.deliver(events.WorkflowResumed())
        run.run()
        assert run.state.deactivated
        check_log(run)
        counted[run.state.status] += 1

    law()
    assert all(counted[status] > 10 for status in ("completed", "failed", "cancelled", "terminated")), counted


def _happens(run: FlowSimulation, happening: str) -> None:
    if run.outcome.status.terminal:
        return
    match happening:
        case "pause":
            run.deliver(events.WorkflowPaused())
        case "resume":
            run.deliver(events.WorkflowResumed())
        case "cancel":
            run.deliver(events.CancelRequested())
        case _:
            run.terminate()


def test_the_outcome_does_not_depend_on_the_order_of_results() -> None:
    counted: Counter[str] = Counter()

    @settings(max_examples=200, **CALM)
    @given(flows(ordered=True), st.integers(0, 1000))
    def law(flow: RandomFlow, seed: int) -> None:
        runs = [run.run() for order in range(4) if (run := simulated(flow, seed + order))]
        outcomes = {(run.state.status, bytes(run.state.result)) for run in runs}
        assert len(outcomes) <= 1, outcomes
        counted.update(status for status, _ in outcomes)

    law()
    assert all(counted[status] > 10 for status in ("completed", "failed")), counted
