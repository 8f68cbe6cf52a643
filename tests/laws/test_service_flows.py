"""Laws of flows whose steps are services: they come to their end in any order, and to the outcome of plain functions."""

from collections import Counter
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from laws.random_flows import RandomFlow, flows
from laws.test_flow_logs import CALM, check_log, simulated
from resurgam.core import event as events
from resurgam.core import flow_event as fe
from resurgam.core.errors import DefinitionError
from resurgam.flows import model as m
from resurgam.flows.errors import ExpressionFailed
from resurgam.flows.http.message import HttpCall
from support.flow_simulation import FlowSimulation
from support.service_model import ServiceModel


def as_service(step: m.Step, kind: m.StepType) -> m.Step:
    """Return a step that is a service in place of a function."""
    assert step.python is not None
    compensate = "http://x/undo" if step.python.compensate else ""
    http = m.HttpConfig(endpoint=f"http://x/{step.id}", compensate=compensate)
    return msgspec.structs.replace(step, type=kind, python=None, http=http)


def served(flow: RandomFlow, kinds: list[m.StepType], seed: int) -> FlowSimulation | None:
    """Return a flow with services, which do what its functions do; None if it cannot be planned."""
    results: dict[str, object] = {}
    functions = flow.functions

    def call(call: HttpCall) -> object:
        if call.mode == "compensate":
            return {}
        arguments: Any = {name: msgspec.json.decode(value) for name, value in call.arguments.items()}
        try:
            results[call.receipt] = result = functions[call.step_id](arguments)
        except Exception as error:
            return error
        return "accepted" if call.mode == "async" else result

    services = ServiceModel(call, lambda call: results[call.receipt])
    steps = [as_service(step, kinds[number % len(kinds)]) for number, step in enumerate(flow.steps)]
    try:
        services.run = FlowSimulation(
            steps, flow.goals, flow.init, {fe.HTTP_ACTIVITY: services}, seed=seed, eager=False
        )
    except (DefinitionError, ExpressionFailed):
        return None
    return services.run


KINDS = st.lists(st.sampled_from(["async", "async", "sync"]), min_size=1, max_size=3)


def test_a_flow_of_services_comes_to_its_end_whatever_happens() -> None:
    """After each entry the simulation compares the fold of the log with the live state."""
    counted: Counter[str] = Counter()

    @settings(max_examples=200, **CALM)
    @given(flows(), KINDS, st.integers(0, 1000), st.sampled_from([None, "cancel", "stop"]))
    def law(flow: RandomFlow, kinds: list[m.StepType], seed: int, happening: str | None) -> None:
        run = served(flow, kinds, seed)
        if run is None:
            return
        for _ in range(seed % 8):
            if actions := run._possible():
                run._chance.choice(actions)()
        if happening == "cancel":
            run.deliver(events.CancelRequested())
        elif happening == "stop" and not run.outcome.status.terminal:
            run.terminate()
        run.run()
        assert run.state.deactivated
        check_log(run)
        counted[run.state.status] += 1
        counted["acknowledged"] += "work_acknowledged" in run.types

    law()
    assert all(counted[one] > 10 for one in ("completed", "failed", "cancelled", "terminated", "acknowledged")), counted


def test_a_flow_of_services_has_the_outcome_of_the_same_flow_of_functions() -> None:
    counted: Counter[str] = Counter()

    @settings(max_examples=60, **CALM)
    @given(flows(ordered=True), KINDS, st.integers(0, 1000))
    def law(flow: RandomFlow, kinds: list[m.StepType], seed: int) -> None:
        own, others = simulated(flow, seed), served(flow, kinds, seed)
        assert (own is None) == (others is None)
        if own is None or others is None:
            return
        own.run()
        others.run()
        assert (own.state.status, own.state.result) == (others.state.status, others.state.result)
        counted[own.state.status] += 1

    law()
    assert all(counted[status] > 5 for status in ("completed", "failed")), counted
