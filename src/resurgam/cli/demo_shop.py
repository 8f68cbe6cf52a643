"""The shop of `resurgam demo`: a workflow, its activities, and the worker process that the demo kills.

Each activity writes to the effects file when it begins and when its work is done, so that one can see afterwards what
really happened outside of the database: ``started`` twice is an activity that a kill has cut off, ``done`` twice one
whose worker died between the work and its record. Delivery is at least once, and this is what it looks like.
"""

import asyncio
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from resurgam import Context, Engine, Registry, SignalTimeout

EFFECTS: Final = "RESURGAM_DEMO_EFFECTS"
"""The environment variable that names the effects file."""

QUEUE: Final = "RESURGAM_DEMO_QUEUE"
"""The environment variable that names the queue to serve: each demo has its own, and touches nobody else's work."""

ANY_DEMO: Final = "resurgam-demo"

PARCELS: Final = 3
SERVING: Final = "serving"
STARTED: Final = "started"
DONE: Final = "done"
NOBODY: Final = "the customer collects it"

registry = Registry()


@dataclass(frozen=True)
class Order:
    """What the customer wants."""

    item: str
    cents: int


@dataclass(frozen=True)
class Shipped:
    """What became of an order."""

    reservation: str
    payment: str
    parcels: list[str]
    courier: str
    receipt: str


@registry.activity
async def reserve_stock(item: str) -> str:
    """Put the goods aside."""
    await _work("reserve_stock")
    return f"{PARCELS} x {item}"


@registry.activity
async def charge_card(cents: int) -> str:
    """Take the money."""
    await _work("charge_card")
    return f"{cents / 100:.2f} paid"


@registry.activity
async def pack_parcel(number: int) -> str:
    """Pack one of the parcels."""
    await _work(f"pack_parcel {number}")
    return f"parcel {number}"


@registry.activity
async def send_receipt(payment: str) -> str:
    """Tell the customer."""
    await _work("send_receipt")
    return f"receipt: {payment}"


@registry.workflow(queue=ANY_DEMO)
async def demo_order(ctx: Context, order: Order) -> Shipped:
    """Reserve, charge, pack in parallel, rest, wait for a courier, send the receipt."""
    reservation = await ctx.activity(reserve_stock, order.item)
    payment = await ctx.activity(charge_card, order.cents)
    parcels = await asyncio.gather(*(ctx.activity(pack_parcel, number) for number in range(1, PARCELS + 1)))
    await ctx.sleep(0.5)
    try:
        courier = await ctx.listen("courier", type=str, timeout=30)
    except SignalTimeout:
        courier = NOBODY
    receipt = await ctx.activity(send_receipt, payment)
    return Shipped(reservation, payment, list(parcels), courier, receipt)


def expected(order: Order, courier: str) -> Shipped:
    """Return what the workflow must give, however often it was killed."""
    paid = f"{order.cents / 100:.2f} paid"
    parcels = [f"parcel {number}" for number in range(1, PARCELS + 1)]
    return Shipped(f"{PARCELS} x {order.item}", paid, parcels, courier, f"receipt: {paid}")


def steps() -> list[str]:
    """Return every activity of the workflow, as it stands in the effects file."""
    packing = [f"pack_parcel {number}" for number in range(1, PARCELS + 1)]
    return ["reserve_stock", "charge_card", *packing, "send_receipt"]


def note(kind: str, workflow_id: str = "", step: str = "") -> None:
    """Append a line to the effects file, in one write that a kill cannot tear."""
    if path := os.environ.get(EFFECTS):
        line = f"{kind}\t{os.getpid()}\t{workflow_id}\t{step}\n".encode()
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, line)
        finally:
            os.close(file)


def read_effects(path: Path, kind: str, workflow_id: str = "") -> list[tuple[int, str]]:
    """Return the process and the step of each line of a kind."""
    if not path.exists():
        return []
    lines = [line.split("\t") for line in path.read_text("utf-8").splitlines()]
    return [(int(pid), step) for what, pid, owner, step in lines if (what, owner) == (kind, workflow_id)]


async def _work(step: str) -> None:
    """Do something outside that takes 0.3 s and cannot be undone."""
    workflow_id = registry.activity.info().workflow_id
    note(STARTED, workflow_id, step)
    await asyncio.sleep(0.2)
    note(DONE, workflow_id, step)
    await asyncio.sleep(0.1)


async def _outlive_nobody(parent: int) -> None:
    """Return when the process that started this one is gone, so that a worker is never left alone."""
    while os.getppid() == parent:  # noqa: ASYNC110 -- a process is not told when its parent dies
        await asyncio.sleep(0.2)


async def serve(url: str) -> None:
    """Work for the demo until killed, asked to stop, or alone."""
    parent, queue = os.getppid(), os.environ.get(QUEUE, ANY_DEMO)
    async with Engine(url, registry=registry, queues=[queue], lease=3, grace=0) as engine:
        note(SERVING)
        ends = {asyncio.create_task(engine.run()), asyncio.create_task(_outlive_nobody(parent))}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        await asyncio.gather(*ends, return_exceptions=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m resurgam.cli.demo_shop URL")
    asyncio.run(serve(sys.argv[1]))
