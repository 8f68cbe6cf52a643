"""The crash sweep knows flows: their steps, retries, deadlines, compensation, scripts, and children of both kinds."""

from typing import Annotated, Any

import msgspec
import pytest

from resurgam import Context, Registry, RetryPolicy
from resurgam.core import event as events
from resurgam.core.errors import DefinitionError, NonRetryable, NotFound
from resurgam.flows import FlowStep, HttpStep, Input, ScriptStep, StepDecorator, WorkflowStep
from resurgam.testing import crash_everywhere, crash_flow_everywhere
from resurgam.testing.crash import outcome
from support.flow_cases import CASES

registry = Registry()
step = StepDecorator(registry)
SEEDS = [None, 1, 2, 3]


@step
async def customer(order_id: str) -> str:
    return f"customer of {order_id}"


@step(name="lines")
async def find_lines(order_id: str) -> list[int]:
    return [1, 2, 3]


@step(parallelism=2)
def price(lines: Annotated[int, Input(for_each=True)]) -> int:
    return 10 * lines


@step
async def credit(customer: str) -> int:
    return len(customer)


@step
async def hint(order_id: str) -> str:
    return "gift"


@step
async def ship(price: list[Any], credit: int, hint: Annotated[str, Input(deadline=60)] = "none") -> dict[str, Any]:
    return {"sum": sum(one["price"] for one in price), "credit": credit, "hint": hint}


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_flow_is_killed_after_every_commit(seed):
    crashes = await crash_flow_everywhere([ship], {"order_id": "o-1"}, registry=registry, seed=seed)

    assert crashes.points > 8
    end, result = outcome(crashes.history)
    assert end == "flow_completed"
    assert msgspec.json.decode(result) == {"ship": {"credit": 15, "hint": "gift", "sum": 60}}
    assert crashes.history[-1].type == "flow_deactivated"


async def test_mocks_and_retries_of_steps():
    def shaky(order_id: str) -> str:
        if registry.activity.info().attempt == 1:
            raise ValueError("not yet")
        return "c"

    crashes = await crash_flow_everywhere(["credit"], {"order_id": "o"}, mocks={"customer": shaky}, registry=registry)

    assert outcome(crashes.history) == ("flow_completed", b'{"credit":1}')
    assert "retry_scheduled" in [entry.type for entry in crashes.history]


async def test_a_step_that_depends_on_more_than_its_inputs_is_found():
    calls = iter(range(100))

    with pytest.raises(AssertionError, match="had other steps than undisturbed"):
        await crash_flow_everywhere(
            ["credit"], {"order_id": "o"}, mocks={"credit": lambda customer: next(calls)}, registry=registry
        )


async def test_missing_values_are_named():
    with pytest.raises(DefinitionError, match="required inputs not provided"):
        await crash_flow_everywhere(["credit"], registry=registry)


async def test_a_failed_step_is_undone_once_wherever_it_is_killed():
    own = Registry()
    undone: list[Any] = []

    def undo(done: dict[str, Any]) -> None:
        undone.append(done)

    @StepDecorator(own)(parallelism=3, compensate=undo, retry=RetryPolicy(max_attempts=1))
    def book(nights: Annotated[int, Input(for_each=True)]) -> int:
        if nights == 2:
            raise ValueError("no room")
        return nights

    for seed in SEEDS:
        crashes = await crash_flow_everywhere([book], {"nights": [1, 2, 3]}, registry=own, seed=seed)
        end, (_, message) = outcome(crashes.history)
        assert (end, message) == ("flow_failed", "step 'book' failed: no room")
        kinds = [entry.type for entry in crashes.history]
        assert kinds.count("comp_succeeded") == kinds.count("work_succeeded") <= 2
        assert kinds[-1] == "flow_deactivated"


@registry.workflow
async def approve(ctx: Context, price: list[Any]) -> str:
    await ctx.sleep(3600)
    return f"approved {len(price)}"


STEPS = [
    ScriptStep(
        "total", "local sum = 0 for _, one in ipairs(price) do sum = sum + one.price end return sum", inputs=["price"]
    ),
    FlowStep("scoring", ["credit"], inputs=["order_id"], outputs=["credit"]),
    WorkflowStep(approve),
]


@pytest.mark.parametrize("seed", SEEDS)
async def test_scripts_and_children_of_both_kinds(seed):
    options: dict[str, Any] = {"steps": STEPS, "registry": registry, "seed": seed}
    crashes = await crash_flow_everywhere(["total", "approve", "scoring"], {"order_id": "o-1"}, **options)

    end, result = outcome(crashes.history)
    assert end == "flow_completed"
    assert msgspec.json.decode(result) == {"approve": "approved 3", "credit": 15, "total": 60}
    assert len(crashes.histories) == 3


async def test_a_cancelled_flow_is_cancelled_wherever_it_is_killed():
    crashes = await crash_flow_everywhere(
        ["approve"], {"order_id": "o"}, steps=STEPS, registry=registry, messages=[events.CancelRequested()]
    )

    assert outcome(crashes.history)[0] == "flow_cancelled"


SERVICES = [
    HttpStep("quote", "http://x/quote", inputs=["order_id"], outputs=["cents"]),
    HttpStep(
        "charge",
        "http://x/charge",
        inputs={"lines": Annotated[int, Input(for_each=True)], "cents": int},
        outputs=["paid"],
        asynchronous=True,
        compensate="http://x/refund",
        parallelism=2,
    ),
]


@pytest.mark.parametrize("seed", SEEDS)
async def test_services_are_mocked_by_their_steps(seed):
    def busy(order_id: str) -> dict[str, int]:
        if registry.activity.info().attempt < 3:
            raise OSError("busy")
        return {"cents": 5}

    undone: list[Any] = []

    def refund(done: dict[str, Any]) -> None:
        undone.append(done["output"])

    def charge(lines: int, cents: int) -> dict[str, int]:
        if lines == 3:
            raise NonRetryable("no money")
        return {"paid": lines * cents}

    crashes = await crash_flow_everywhere(
        ["charge"],
        {"order_id": "o"},
        steps=SERVICES,
        mocks={"quote": busy, "charge": charge, "charge.compensate": refund},
        registry=registry,
        seed=seed,
    )

    kinds = [entry.type for entry in crashes.history]
    assert outcome(crashes.history)[0] == "flow_failed"
    assert kinds.count("retry_scheduled") == 2
    charged = [entry for entry in crashes.history if entry.type == "work_succeeded" and entry.step == "charge"]
    assert kinds.count("comp_succeeded") == len(charged) > 0
    assert {one["paid"] for one in undone} <= {5, 10}


async def test_a_service_without_a_mock_is_named():
    with pytest.raises(NotFound, match="a simulation calls no services: give the step 'quote' a mock"):
        await crash_flow_everywhere(["quote"], {"order_id": "o"}, steps=SERVICES, registry=registry)


@registry.workflow
async def fulfil(ctx: Context, order_id: str) -> Any:
    result = await ctx.flow(["ship"], {"order_id": order_id})
    return result["ship"]["sum"]


async def test_a_workflow_that_awaits_a_flow():
    crashes = await crash_everywhere(fulfil, "o-1", registry=registry)

    assert outcome(crashes.history) == ("workflow_completed", b"60")
    assert len(crashes.histories) == 2


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
async def test_a_case_has_one_outcome_wherever_it_is_killed(name, seed):
    case = CASES[name]
    own, steps = case.defined()
    crashes = await crash_flow_everywhere(case.goals, case.init, steps=steps, registry=own, seed=seed)

    end, told = outcome(crashes.history)
    assert end == ("flow_completed" if case.result is not None else "flow_failed")
    assert case.result is None or msgspec.json.decode(told) == case.result
    assert case.message in str(told)
    assert crashes.history[-1].type == "flow_deactivated"
