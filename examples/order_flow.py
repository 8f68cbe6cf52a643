"""A goal flow: name the result, and the engine finds the steps that lead to it, runs them and records them.

Watch for: nothing says in which order the five steps run. The names of parameters and results say it: `shipment` takes a
receipt and a reservation, so the steps that provide them run first. `price` and `reservation` run side by side.
"""

import asyncio
from dataclasses import dataclass

from resurgam import Engine
from resurgam.flows import step


@dataclass
class Order:
    """What somebody has ordered."""

    customer: str
    items: list[str]


@step
async def order(order_id: str) -> Order:
    """Load the order."""
    return Order(customer="Ada", items=["book", "lamp"])


@step
async def price(items: list[str]) -> int:
    """Add up the prices, in cents."""
    return sum({"book": 1200, "lamp": 4900}[item] for item in items)


@step
async def reservation(items: list[str]) -> str:
    """Reserve the items."""
    return f"shelf 7: {', '.join(items)}"


@step
async def receipt(customer: str, price: int) -> str:
    """Charge the customer."""
    return f"{price / 100:.2f} from {customer}"


@step
async def shipment(customer: str, receipt: str, reservation: str) -> str:
    """Hand the parcel to the carrier."""
    return f"parcel for {customer} ({reservation}), paid: {receipt}"


async def main() -> None:
    async with Engine() as engine:
        plan = await engine.plan(["shipment"], {"order_id": "o-1"})
        print("the plan:", ", ".join(plan.steps))
        flow = await engine.start_flow(["shipment"], {"order_id": "o-1"}, id="o-1")
        print("the result:", await flow.result())
        # What is given need not be provided: this one charges nobody.
        paid = await engine.plan(["shipment"], {"order_id": "o-2", "receipt": "a voucher"})
        print("with a voucher:", ", ".join(paid.steps))


if __name__ == "__main__":
    asyncio.run(main())
