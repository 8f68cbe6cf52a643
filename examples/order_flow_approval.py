"""A goal flow in which one step is a whole workflow: large orders are charged once somebody has approved them.

Watch for: the other steps and the goal stay as they are, because the workflow takes and provides the same attributes as the
function that it replaces. It is a child of the flow, with a history, signals and timers of its own.
"""

import asyncio
from dataclasses import dataclass

from resurgam import Context, Engine, workflow
from resurgam.flows import WorkflowStep, step


@dataclass
class Order:
    """What somebody has ordered."""

    customer: str
    items: list[str]


@step
async def order(order_id: str) -> Order:
    """Load the order."""
    return Order(customer="Ada", items=["piano"])


@step
async def price(items: list[str]) -> int:
    """Add up the prices, in cents."""
    return sum({"book": 1200, "piano": 490_000}[item] for item in items)


@step
async def reservation(items: list[str]) -> str:
    """Reserve the items."""
    return f"shelf 7: {', '.join(items)}"


@workflow
async def receipt(ctx: Context, customer: str, price: int) -> str:
    """Charge the customer, large amounts only when approved."""
    if price > 100_000:
        who = await ctx.listen("approve", type=str)
        return f"{price / 100:.2f} from {customer}, approved by {who}"
    return f"{price / 100:.2f} from {customer}"


@step
async def shipment(customer: str, receipt: str, reservation: str) -> str:
    """Hand the parcel to the carrier."""
    return f"parcel for {customer} ({reservation}), paid: {receipt}"


async def main() -> None:
    async with Engine() as engine:
        await engine.register_step(WorkflowStep(receipt))
        flow = await engine.start_flow(["shipment"], {"order_id": "o-1"}, id="o-1")
        child = None
        while child is None:  # until the flow has come to the step
            children = await engine.list(parent="o-1")
            child = next(iter(children.instances), None)
            await asyncio.sleep(0.01)
        await engine.handle(child.entity_id).signal("approve", "Grace")
        print(await flow.result())


if __name__ == "__main__":
    asyncio.run(main())
