"""The contract of stores, on a store with partitions: effects arrive after the commit, and order holds in each."""

from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from resurgam.core.outcome import Message, OpenPromise
from resurgam.store import records as r
from resurgam.testing.contract import LEASE, StoreContract
from resurgam.testing.contract.bench import HOUR, routed, signal, values
from resurgam.testing.contract.messages import message
from resurgam.testing.contract.queries import query_task
from support.late_effects import LateEffectsStore
from support.partitioned_claims import PARTITIONS


class TestLateEffects(StoreContract):
    partitions = PARTITIONS

    @asynccontextmanager
    async def open_store(self, clock):
        yield LateEffectsStore(clock, lease=LEASE)

    # What this store does that the memory store does not.

    async def test_effects_keep_their_order_for_each_pair_only(self) -> None:
        async with self.bench() as b:
            for name in ("one", "two"):
                await b.create(name, queue="targets")
            await b.create()
            sent = (
                message(signal("a"), "one", ref=2),
                message(signal("b"), "two", ref=3),
                Message(event=signal("c"), entity_id="one"),
            )
            done = await b.committed(await b.claim_one(), messages=sent, release=False)
            assert [entry.event.ref for entry in done.inbox] == [3, 2]
            claims = {claim.instance.entity_id: values(claim.inbox) for claim in await b.claim(queues=["targets"])}
            assert claims == {"one": ["a", "c"], "two": ["b"]}

    async def test_ids_of_promises_and_queries_must_be_routable(self) -> None:
        async with self.bench() as b, self.bench() as other:
            instance = await b.create()
            task = query_task("q-1", instance, b.clock.now() + HOUR)
            with pytest.raises(AssertionError, match="must begin with the route of 'order'"):
                await b.store.queries.submit([replace(task, query_id=routed("q-1", "another"))])
            await b.committed(await b.claim_one(), promises=(OpenPromise(routed("p-1"), "approval"),))
            [copy] = await b.store.transfer.copies("order")
            moved = replace(copy, instance=replace(copy.instance, entity_id="another"))
            with pytest.raises(AssertionError, match="must begin with the route of 'another'"):
                await other.store.transfer.adopt([r.Adoption(entity_id="another", copies=(moved,))])
            await b.send_signals("order", "x")
            for wrong in ({"promises": (OpenPromise("p-2", "more"),)}, {"closed": ("p-1",)}):
                with pytest.raises(AssertionError, match="must begin with the route of 'order'"):
                    await b.commit(await b.claim_one(), **wrong)
                await b.pass_time(LEASE)
