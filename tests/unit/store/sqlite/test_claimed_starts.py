"""What the prepared entry of an activity costs its claim: one statement, and nothing where there is none."""

import pytest

from resurgam.store.sqlite.store import SqliteStore
from resurgam.testing import ManualClock
from resurgam.testing.contract.bench import LEASE, Bench, OpensStores, request
from resurgam.testing.contract.starts import HOLDING, starting


async def claimed(*requests):
    """Return the statements of a claim of these activities."""
    clock, statements = ManualClock(), []
    store = SqliteStore(None, clock, name="store", lease=LEASE, synchronous="OFF")
    b = Bench(store, clock, OpensStores())
    try:
        await b.create(queue=HOLDING)
        await b.want(await b.claim_one(queues=(HOLDING,)), *requests)
        store.database.trace(statements.append, None)
        assert len(await b.tasks()) == len(requests)
    finally:
        await store.close()
    return statements


@pytest.mark.parametrize("count", [1, 5])
async def test_a_prepared_entry_costs_a_claim_one_statement(count):
    plain = await claimed(*(request(ref) for ref in range(2, 2 + count)))
    assert not [statement for statement in plain if "inbox" in statement]
    prepared = await claimed(*(starting(ref) for ref in range(2, 2 + count)))
    assert len([statement for statement in prepared if "INTO inbox" in statement]) == count
    assert len(prepared) == len(plain) + count
