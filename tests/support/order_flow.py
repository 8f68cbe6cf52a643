"""The flow of an order, for tests of the engine: four steps, of which one may be held back."""

import asyncio
from dataclasses import dataclass, field

from resurgam.flows import StepDecorator
from resurgam.runtime.registry import Registry


@dataclass
class Order:
    """What is known of an order."""

    customer: str
    items: list[str]


@dataclass
class Shop:
    """A registry with the steps of an order: ``shipment`` needs ``price`` and ``customer``, which need ``order_id``."""

    registry: Registry = field(default_factory=Registry)
    calls: list[str] = field(default_factory=list)
    may_price: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.may_price.set()
        step = StepDecorator(self.registry)

        @step
        async def order(order_id: str) -> Order:
            """Load the order."""
            self.calls.append("order")
            return Order(customer=f"customer of {order_id}", items=["book", "lamp"])

        @step
        async def price(items: list[str], discount: int = 0) -> int:
            """Add up the prices."""
            self.calls.append("price")
            await self.may_price.wait()
            return 10 * len(items) - discount

        @step
        async def shipment(customer: str, price: int) -> str:
            """Send the parcel."""
            self.calls.append("shipment")
            return f"{customer} pays {price}"
