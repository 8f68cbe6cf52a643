"""Static types of goal flows; run by mypy --strict and pyright, never executed. Calls that must fail are marked."""

from dataclasses import dataclass
from typing import Annotated, Any, assert_type

from resurgam import Context, Engine, Handle, Registry, SyncEngine, SyncHandle, workflow
from resurgam.flows import (
    Catalog,
    Const,
    FlowStep,
    Input,
    Meta,
    Plan,
    ScriptStep,
    Step,
    StepDecorator,
    WorkflowStep,
    plan,
    step,
)
from resurgam.testing import Environment


@dataclass
class Order:
    customer: str
    items: list[str]


@step
async def order(order_id: str) -> Order:
    return Order(order_id, [])


@step(parallelism=4, memoize=60, labels={"team": "shop"})
def price(
    item: Annotated[str, Input(for_each=True)],
    rate: Annotated[float, Const(1.5)],
    flow: Annotated[str, Meta("flow_id")],
    discount: Annotated[float, Input(deadline=2)] = 0.0,
) -> float:
    return rate


@step(parallel=4)  # type: ignore[call-overload,untyped-decorator]  # pyright: ignore[reportCallIssue]
def misspelt() -> int:
    return 1


@workflow
async def receipt(ctx: Context, customer: str) -> str:
    return customer


def definitions() -> None:
    assert_type(price("book", 1.5, "f"), float)
    assert_type(ScriptStep("double", "return 2 * n", inputs={"n": int}, outputs=["twice"]), Step)
    assert_type(FlowStep("deliver", ["ship"], inputs=["order_id"], parallelism=2), Step)
    assert_type(WorkflowStep(receipt, queue="slow"), Step)
    ScriptStep("double")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    ScriptStep("double", "return 1", language="ruby")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    WorkflowStep(price)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    local = StepDecorator(Registry())

    @local
    def one(number: int) -> int:
        return number

    assert_type(one(1), int)
    assert_type(plan(Catalog(), ["order"], {}, "strict", lambda _, __: True), Plan)


async def verbs(engine: Engine, env: Environment) -> None:
    flow = await engine.start_flow(["shipment", order], {"order_id": "o-1"}, id="f", tags={"of": "Ada"})
    assert_type(flow, Handle[dict[str, Any]])
    assert_type(await flow.result(), dict[str, Any])
    assert_type(await engine.plan([order], mode="strict"), Plan)
    assert_type(await engine.register_step(price), bool)
    assert_type(await engine.update_step(WorkflowStep(receipt)), bool)
    await engine.remove_step("price")
    assert_type(await engine.steps(), list[Step])
    await engine.start_flow(order)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await engine.start_flow([order], if_exists="error")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await engine.plan([order], mode="fast")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    env.mock(order, returns=Order("Ada", []))
    assert_type(await env.start_flow([order]), Handle[dict[str, Any]])


def blocking(engine: SyncEngine) -> None:
    flow = engine.start_flow([order], {"order_id": "o-1"}, id="f")
    assert_type(flow, SyncHandle[dict[str, Any]])
    assert_type(flow.result(), dict[str, Any])
    assert_type(engine.steps(), list[Step])
    assert_type(engine.plan(["order"]), Plan)
    assert_type(engine.register_step(price), bool)
