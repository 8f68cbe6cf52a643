"""Parked runs that a worker has tried cost its claims little."""

from resurgam.core import event as events
from resurgam.core.state import Status
from support.redis import commands_of_functions


async def park(b, count):
    for number in range(count):
        await b.create(b.beside(f"order-{number}"))
        diverged = events.WorkflowDiverged(seq=2, diagnosis="no")
        await b.committed(await b.claim_one(), diverged, status=Status.DIVERGED)


async def cost_of_a_claim(b):
    """Return the commands of a claim that finds one instance."""
    await b.create()
    before = commands_of_functions()
    claim = await b.claim_one()
    cost = commands_of_functions() - before
    await b.end(claim)
    return cost


async def test_a_claim_asks_one_thing_about_each_parked_run_that_its_worker_has_tried(b):
    await cost_of_a_claim(b)
    alone = await cost_of_a_claim(b)
    await park(b, 30)
    assert await cost_of_a_claim(b) - alone <= 31  # and the page of the list
