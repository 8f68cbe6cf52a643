"""Services in any order: calls, acknowledgements, answers, deadlines, lost workers and crashes. The brain alone decides.

The activity that calls a service is replaced by a model of it.
"""

from typing import Any

import pytest
from msgspec import Raw

from resurgam.core import flow_event as fe
from resurgam.core import lifecycle
from resurgam.core.entry import Failure
from resurgam.core.errors import Postponed, StepRejected
from resurgam.core.retry import RetryRule
from resurgam.flows import HttpStep
from resurgam.flows import model as m
from resurgam.flows.http.message import HttpCall
from resurgam.flows.state import LOST
from support.flow_simulation import FlowSimulation
from support.flow_steps import changed, step
from support.service_model import ServiceModel

SEEDS = range(12)
DEADLINE = 3_600_000


def simulated(services: ServiceModel, steps: list[m.Step], goals: list[str], seed: int, **given: Any) -> FlowSimulation:
    functions = {fe.HTTP_ACTIVITY: services, **given.pop("functions", {})}
    run = FlowSimulation(steps, goals, given, functions, seed=seed)
    services.run = run
    return run


def pay(**options: Any) -> m.Step:
    return HttpStep("pay", "http://x/pay", inputs=["v"], outputs=["receipt"], asynchronous=True, **options)


def check_log(run: FlowSimulation) -> None:
    """The log is complete, each item has one answer at most, and every acknowledgement precedes its deadline."""
    assert run.types[-1] == "flow_deactivated"
    answers = [entry.ref for entry in run.log if isinstance(entry, fe.WorkSucceeded | fe.WorkFailed | fe.WorkCancelled)]
    assert len(answers) == len(set(answers))


def about_calls(run: FlowSimulation) -> list[str]:
    """Return what the log says about calls and their answers, apart from attempts whose worker was lost."""
    return [one.type for one in run.log if one.type in _ABOUT_CALLS and getattr(one, "failure", None) != LOST]


def check_calls(services: ServiceModel) -> None:
    """No step is called again, and none is withdrawn, before the deadline of a call that it has accepted."""
    assert services.run is not None
    cancelled = [(f"run/{one.ref}", one.at) for one in services.run.log if isinstance(one, fe.WorkCancelled)]
    for receipt, deadlines in services.deadlines.items():
        for deadline in deadlines:
            since = deadline - DEADLINE
            assert not [at for one, at in services.calls if one == receipt and since < at < deadline]
            assert not [at for one, at in cancelled if one == receipt and since <= at < deadline]


@pytest.mark.parametrize("seed", SEEDS)
def test_an_accepted_step_ends_with_its_answer(seed: int) -> None:
    services = ServiceModel(lambda _: "accepted", lambda call: {"receipt": call.receipt})
    run = simulated(services, [pay(), step("G: receipt > g")], ["G"], seed, v=[7], functions={"G": lambda _: {"g": 1}})
    run.run()

    assert run.state.status == "completed"
    check_log(run)
    check_calls(services)
    assert about_calls(run)[:2] == ["work_acknowledged", "work_succeeded"]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_step_without_an_answer_is_called_again_after_its_deadline_as_often_as_its_policy_says(seed: int) -> None:
    services = ServiceModel(lambda _: "accepted")
    run = simulated(services, [pay(retry=_THRICE)], ["pay"], seed, v=[7])
    run.accept = lambda ref, answer: None  # type: ignore[method-assign]  # the service forgets what it has accepted
    run.run()

    assert run.state.status == "failed"
    assert len(services.calls) == 3
    assert about_calls(run) == [
        *("work_acknowledged", "work_not_completed", "retry_scheduled") * 2,
        *("work_acknowledged", "work_failed"),
    ]
    check_log(run)
    check_calls(services)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_failed_flow_waits_for_what_was_accepted_and_undoes_a_late_success(seed: int) -> None:
    """One of three items is refused; those that were accepted are answered, or given up at their deadline."""
    each = changed(
        pay(compensate="http://x/refund", parallelism=3),
        attributes={"v": m.Required(required=m.RequiredConfig(for_each=True)), "receipt": m.Output()},
    )

    def respond(call: HttpCall) -> object:
        if call.mode == "compensate":
            return {}
        return StepRejected("no money") if bytes(call.arguments["v"]) == b"2" else "accepted"

    services = ServiceModel(respond, lambda call: {"receipt": call.receipt})
    run = simulated(services, [each], ["pay"], seed, v=[[1, 2, 3]])
    run.run()

    assert run.state.status == "failed"
    assert run.state.failure is not None
    assert "no money" in run.state.failure.message
    check_log(run)
    check_calls(services)
    succeeded = [entry.ref for entry in run.log if isinstance(entry, fe.WorkSucceeded)]
    undone = [entry.item for entry in run.log if isinstance(entry, fe.CompStarted)]
    assert sorted(succeeded) == sorted(undone)
    assert run.types.count("comp_succeeded") == len(undone)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cancelled_flow_waits_for_what_was_accepted_and_calls_nothing_more(seed: int) -> None:
    responses = iter([OSError("503"), "accepted", "accepted"])
    services = ServiceModel(lambda _: next(responses))
    steps = [pay(), HttpStep("ask", "http://x/ask", outputs=["a"], asynchronous=True)]
    run = simulated(services, steps, ["pay", "ask"], seed, v=[7])
    for _ in range(seed):
        if actions := run._possible():
            run._chance.choice(actions)()
    ended = run.state.status != "active"
    run.deliver(lifecycle.CancelRequested())
    calls = len(services.calls)
    run.advance()
    running = len(run.running)
    run.run()

    assert run.state.status == ("completed" if ended else "cancelled")
    assert len(services.calls) <= calls + running
    check_log(run)
    check_calls(services)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_terminated_flow_records_the_answers_of_what_was_accepted(seed: int) -> None:
    services = ServiceModel(lambda _: "accepted", lambda _: {"receipt": 1})
    run = simulated(services, [pay()], ["pay"], seed, v=[7])
    run.claim(1)
    run.finish(1)
    run.terminate()
    run.run()

    check_log(run)
    assert "work_succeeded" in run.types
    assert len(services.calls) == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_a_sync_step_is_called_until_it_answers_and_each_call_is_recorded(seed: int) -> None:
    """Attempts that were only deferred are not counted."""
    responses = iter([OSError("503"), {"price": 5}])
    services = ServiceModel(lambda _: next(responses))
    kept = services.__call__
    deferrals = iter(range(2))

    def deferred(given: Any) -> object:
        if next(deferrals, None) is not None:
            unhealthy = Failure(type=fe.DEFERRED, message="unhealthy")
            raise Postponed(run.now + 1000, unhealthy, Raw(b"{}"), failed=False)
        return kept(given)

    sync = HttpStep("price", "http://x/price", inputs=["v"], outputs=["price"])
    run = FlowSimulation([sync], ["price"], {"v": [7]}, {fe.HTTP_ACTIVITY: deferred}, seed=seed, losses=False)
    services.run = run
    run.run()

    assert run.result == {"price": 5}
    assert about_calls(run) == [
        *("dispatch_deferred", "dispatch_deferred", "work_not_completed", "retry_scheduled", "work_succeeded")
    ]
    assert [entry.attempt for entry in run.log if isinstance(entry, fe.WorkStarted)] == [1, 1, 1, 2]
    check_log(run)


_THRICE = RetryRule(max_attempts=3).policy()
_ABOUT_CALLS = (
    *("work_acknowledged", "work_not_completed", "retry_scheduled", "dispatch_deferred"),
    *("work_succeeded", "work_failed"),
)
