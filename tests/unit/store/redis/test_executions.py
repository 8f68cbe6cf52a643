"""Executions of an entity that has many are found by an index."""

from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from resurgam.store import records as r
from resurgam.store.redis import link as links
from resurgam.store.redis.library import library
from resurgam.store.redis.store import RedisStore
from resurgam.testing.contract.bench import LEASE
from resurgam.testing.contract.children import ChildCases
from resurgam.testing.contract.creation import CreationCases
from resurgam.testing.contract.succession import SuccessionCases
from resurgam.testing.contract.transfer import TransferCases
from support.redis import commands_of_functions, effects_arrived, fresh_url, shared_server

FEW = "LOOKED_THROUGH = 16"


class TestAnIndexFromTheSecondExecutionOn(ChildCases, CreationCases, SuccessionCases, TransferCases):
    """The cases in which executions are looked for, as if two were many."""

    partitions = 16
    pause = 0.001

    @pytest.fixture(autouse=True)
    def index_all(self, monkeypatch):
        known = library()
        assert FEW in known.text
        version = known.name.removeprefix("resurgam_")
        changed = replace(
            known,
            text=known.text.replace(FEW, "LOOKED_THROUGH = 1").replace(version, "indexed"),
            functions={verb: f"{verb}_indexed".encode() for verb in known.functions},
        )
        monkeypatch.setattr(links, "library", lambda: changed)

    @asynccontextmanager
    async def open_store(self, clock):
        store = RedisStore(fresh_url(), clock, name="contract", lease=LEASE)
        try:
            yield store
        finally:
            await store.close()

    async def effects_arrived(self, store):
        await effects_arrived(store)


async def test_a_start_costs_the_same_however_many_executions_came_before(b):
    costs = []
    for number in range(60):
        before = commands_of_functions()
        await b.create("order", run_id=f"run {number}")
        costs.append(commands_of_functions() - before)
        await b.end(await b.claim_one())
    assert len(set(costs[20:])) == 1, costs


async def test_a_repeated_start_is_found_among_many(b):
    parts = [r.Creation(started=b.started("order", run_id=f"run {number}")) for number in range(40)]
    for part in parts:
        await b.store.create([part])
        await b.end(await b.claim_one())
    for part in parts:
        [found] = await b.store.create([part])
        assert isinstance(found, r.Created)
        assert found.instance.execution_id == part.started.execution_id
    assert len(await b.store.transfer.copies("order")) == 40


async def test_the_index_of_executions_is_purged_with_them(b):
    ended = []
    for _ in range(40):
        ended.append(await b.create("order"))
        await b.end(await b.claim_one())
    assert set(await b.store.purge(ended)) == {r.Purged()}
    link = b.store._link
    assert await link.ask(link.partition_of("order"), "get_instance", ["order", None, None, 0]) == [None, None]
    assert not shared_server().ask("KEYS", f"{link.address.prefix}*order*")
