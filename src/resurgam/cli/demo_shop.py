"""The shop of `resurgam demo`: a workflow, its activities, and the worker process that the demo kills.

Each activity writes to the effects file when it starts and when its work is done, which shows what happened outside of
the database: ``started`` twice is an activity that a kill interrupted, ``done`` twice one whose worker died between the
work and its record. Activities run at least once.
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
"""The environment variable that names the queue to serve: each demo has its own, and leaves other work alone."""

ANY_DEMO: Final = "resurgam-demo"

PARCELS: Final = 3
SERVING: Final = "serving"
STARTED: Final = "started"
DONE: Final = "done"
NO_COURIER: Final = "the customer collects it"

registry = Registry()


@dataclass(frozen=True)
class Order:
    """An order of a customer."""

    item: str
    cents: int


@dataclass(frozen=True)
class Shipped:
    """The result of an order."""

    reservation: str
    payment: str
    parcels: list[str]
    courier: str
    receipt: str


@registry.activity
async def reserve_stock(item: str) -> str:
    """Reserve the goods."""
    await _work("reserve_stock")
    return f"{PARCELS} x {item}"


@registry.activity
async def charge_card(cents: int) -> str:
    """Charge the card."""
    await _work("charge_card")
    return f"{cents / 100:.2f} paid"


@registry.activity
async def pack_parcel(number: int) -> str:
    """Pack one parcel."""
    await _work(f"pack_parcel {number}")
    return f"parcel {number}"


@registry.activity
async def send_receipt(payment: str) -> str:
    """Send the receipt to the customer."""
    await _work("send_receipt")
    return f"receipt: {payment}"


@registry.workflow(queue=ANY_DEMO)
async def demo_order(ctx: Context, order: Order) -> Shipped:
    """Reserve, charge, pack in parallel, sleep, wait for a courier, send the receipt."""
    reservation = await ctx.activity(reserve_stock, order.item)
    payment = await ctx.activity(charge_card, order.cents)
    parcels = await asyncio.gather(*(ctx.activity(pack_parcel, number) for number in range(1, PARCELS + 1)))
    await ctx.sleep(0.5)
    try:
        courier = await ctx.listen("courier", type=str, timeout=30)
    except SignalTimeout:
        courier = NO_COURIER
    receipt = await ctx.activity(send_receipt, payment)
    return Shipped(reservation, payment, list(parcels), courier, receipt)


def expected(order: Order, courier: str) -> Shipped:
    """Return the result that the workflow must have, however often it was killed."""
    paid = f"{order.cents / 100:.2f} paid"
    parcels = [f"parcel {number}" for number in range(1, PARCELS + 1)]
    return Shipped(f"{PARCELS} x {order.item}", paid, parcels, courier, f"receipt: {paid}")


def steps() -> list[str]:
    """Return the activities of the workflow, as they are written to the effects file."""
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
    """Do some work with an external effect, in 0.3 s."""
    workflow_id = registry.activity.info().workflow_id
    note(STARTED, workflow_id, step)
    await asyncio.sleep(0.2)
    note(DONE, workflow_id, step)
    await asyncio.sleep(0.1)


async def _wait_for_orphaning(parent: int) -> None:
    """Return when the parent process has ended, so that no worker is left behind."""
    while os.getppid() == parent:  # noqa: ASYNC110 -- a process gets no event when its parent ends
        await asyncio.sleep(0.2)


async def serve(url: str) -> None:
    """Serve the demo until this process is killed or stopped, or its parent has ended."""
    parent, queue = os.getppid(), os.environ.get(QUEUE, ANY_DEMO)
    async with Engine(url, registry=registry, queues=[queue], lease=3, grace=0) as engine:
        note(SERVING)
        ends = {asyncio.create_task(engine.run()), asyncio.create_task(_wait_for_orphaning(parent))}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        await asyncio.gather(*ends, return_exceptions=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m resurgam.cli.demo_shop URL")
    asyncio.run(serve(sys.argv[1]))
