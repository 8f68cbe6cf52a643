"""Faults of the line, of other transactions and of the server: nothing acknowledged is lost, nothing is done twice."""

import asyncio
import contextlib
import random
import subprocess

import asyncpg
import pytest
from msgspec.structs import replace

from resurgam import Engine
from resurgam.core import event as events
from resurgam.core.outcome import Outcome
from resurgam.core.state import Status
from resurgam.errors import StoreError
from resurgam.store import records as r
from resurgam.store.postgres.store import PostgresStore
from resurgam.store.postgres.url import parse
from resurgam.testing import ManualClock
from resurgam.testing.contract.bench import LEASE, QUEUE, Bench, OpensStores, signal
from resurgam.testing.contract.feed import entry
from support.agreement.coverage import Coverage
from support.agreement.sides import Side
from support.agreement.story import WORKERS
from support.agreement.subjects import Subject, tell
from support.chains import STEPS, WORKFLOWS, Restart, Run
from support.limits import HANGS
from support.postgres import (
    emptied_url,
    fresh_url,
    own_server,
    run_script,
    temporary_folder,
    transactions_ended,
)
from support.wire import proxied

LOSSES = 0.01
"""The share of requests that do not arrive, and of those whose answers do not."""

SPOILED = """
CREATE SEQUENCE {schema}.spoils;
CREATE FUNCTION {schema}.spoil() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF hashint8(nextval('{schema}.spoils')) & 15 = 0 THEN RAISE EXCEPTION 'stopped' USING ERRCODE = '{code}'; END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER spoil AFTER INSERT OR UPDATE OR DELETE ON {schema}.states EXECUTE FUNCTION {schema}.spoil();
CREATE TRIGGER spoil AFTER INSERT OR UPDATE OR DELETE ON {schema}.activities EXECUTE FUNCTION {schema}.spoil();
"""
"""A sixteenth of all statements that change something fail, and their transactions with them."""

OPEN = """
INSERT INTO {schema}.instances (
    execution_id, entity_id, run_id, tree_id, generation, attempt, kind, name, queue, status, created_at, first_run
)
VALUES ('x', '{entity_id}', 'x', 'x', 1, 1, 'workflow', 'x', 'x', 'running', 1, 'x')
"""
"""An open execution of an entity."""

FULL = """
CREATE TABLE {schema}.ballast ();
CREATE FUNCTION {schema}.is_full() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM {schema}.ballast) THEN
        RAISE EXCEPTION 'No space left on device' USING ERRCODE = '53100';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER is_full AFTER INSERT ON {schema}.events EXECUTE FUNCTION {schema}.is_full();
"""


@contextlib.asynccontextmanager
async def opened(url, *names, clock=None):
    """Open a store for each name."""
    clock = clock or ManualClock()
    async with contextlib.AsyncExitStack() as stack:
        stores = [PostgresStore(url, clock, name=name, lease=LEASE) for name in names]
        for store in stores:
            stack.push_async_callback(store.close)
            await store.inspector.get("nothing")
        yield [Bench(store, clock, OpensStores()) for store in stores]


# Stories: what the store answers and holds is what the memory store does, whatever happens on the way.


def on_a_bad_line(seed, options=""):
    """Return a store over a line that loses requests and replies."""

    @contextlib.asynccontextmanager
    async def open_sides(clock):
        rng = random.Random(seed)
        async with emptied_url() as given, proxied(given + options) as (wire, url):
            async with opened(url, *WORKERS, clock=clock) as benches, transactions_ended() as ended:

                def loses(_):
                    chance = rng.random()
                    wire.lose_requests, wire.lose_replies = int(chance < LOSSES), int(LOSSES < chance < 2 * LOSSES)
                    return True

                wire.when = loses
                yield Side({name: bench.store for name, bench in zip(WORKERS, benches, strict=True)}, ended)
                wire.when, wire.lose_requests, wire.lose_replies = None, 0, 0

    return Subject(partitioned=False, open=open_sides)


def among_others(code):
    """Return a store whose transactions the server stops again and again because of others."""

    @contextlib.asynccontextmanager
    async def open_sides(clock):
        url = fresh_url()
        async with opened(url, *WORKERS, clock=clock) as benches, transactions_ended() as ended:
            await run_script(SPOILED.format(schema=parse(url).schema, code=code))
            yield Side({name: bench.store for name, bench in zip(WORKERS, benches, strict=True)}, ended)

    return Subject(partitioned=False, open=open_sides)


@pytest.mark.parametrize("options", ["", "&pooler=transaction"], ids=["direct", "pooler"])
async def test_a_story_over_a_bad_line_is_the_one_that_memory_tells(options):
    await tell(on_a_bad_line(40, options), 40, 30, Coverage())


@pytest.mark.long
@pytest.mark.parametrize("options", ["", "&pooler=transaction"], ids=["direct", "pooler"])
async def test_many_stories_over_a_bad_line_are_those_that_memory_tells(options):
    for seed in range(30):
        await tell(on_a_bad_line(seed, options), seed, 200, Coverage())


@pytest.mark.parametrize("code", ["40001", "40P01", "55P03"])
async def test_a_story_among_transactions_that_stop_it_is_the_one_that_memory_tells(code):
    await tell(among_others(code), 6, 60, Coverage())


# Commits of one execution by several functions.


@pytest.mark.parametrize("ends", [True, False], ids=["finish", "commit"])
async def test_a_commit_does_not_overtake_the_step_before_it(ends):
    """Though the step is lost on its way several times, and the commit has a connection of its own."""
    async with emptied_url() as given, proxied(given) as (wire, url), opened(url, "one") as [b]:
        await b.create()
        claim = await b.claim_one()
        step = r.Commit(
            entity_id="order",
            execution_id=claim.instance.execution_id,
            epoch=claim.epoch,
            base_seq=1,
            wake=claim.wake,
            outcome=Outcome(events=(entry(2),)),
            release=False,
        )
        last = Outcome(events=(events.WorkflowCompleted(seq=3),), status=Status.COMPLETED)
        last = last if ends else Outcome(events=(entry(3),), wake_at=b.clock.now() + LEASE)
        await asyncio.gather(*(b.store.inspector.get("nothing") for _ in range(8)))  # connections for both
        wire.lose_requests, wire.when = 3, lambda request: b".step" in request
        told = [asyncio.get_running_loop().create_future() for _ in range(2)]
        for part, one in zip((step, replace(step, base_seq=2, outcome=last, release=True)), told, strict=True):
            b.store.submit(part, one.set_result)
        answers = await asyncio.wait_for(asyncio.gather(*told), HANGS)
        assert [type(answer) for answer in answers] == [r.Committed, r.Committed]
        assert not wire.lose_requests


# Claims whose answer is lost while the server still works on them.


@pytest.mark.parametrize("verb", ["claim", "claim_activities"])
async def test_a_claim_that_ends_after_its_connection_was_lost_leases_nothing_to_nobody(verb):
    """It waits for what another transaction holds; what is leased then is what callers got."""
    async with emptied_url() as given, proxied(given) as (wire, url), opened(url, "one") as [b]:
        await b.wanting(2)
        await b.create("another")
        schema = parse(url).schema
        holder = await asyncpg.connect(given.partition("?")[0])
        async with holding(holder, f"LOCK TABLE {schema}.announced"):
            claiming = asyncio.ensure_future(getattr(b.store, verb)("first", ("default",), 10))
            [first] = await until_held(holder, 1)
            wire.cut_all()
            while not claiming.done() and len(await held(holder)) < 2:
                await asyncio.sleep(0.005)
        found = list(await asyncio.wait_for(claiming, HANGS))
        while await holder.fetch("SELECT FROM pg_stat_activity WHERE pid = $1 AND state = 'active'", first):
            await asyncio.sleep(0.005)
        await holder.close()
        found += await getattr(b.store, verb)("first", ("default",), 10)
        assert len(found) == 1
        if verb == "claim":
            assert isinstance(await b.extend(found[0]), r.Extended)
        else:
            assert await b.answer(found[0]) == r.Accepted()


@contextlib.asynccontextmanager
async def holding(connection, statement):
    """Run a statement that locks, and keep its transaction open."""
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(statement)
    yield
    await transaction.rollback()


async def until_held(connection, count):
    """Return the backends that wait for a lock, once there are so many."""
    async with asyncio.timeout(HANGS):
        while len(pids := await held(connection)) < count:
            await asyncio.sleep(0.005)
    return pids


async def held(connection):
    """Return the backends of the server that wait for a lock."""
    return [row["pid"] for row in await connection.fetch("SELECT DISTINCT pid FROM pg_locks WHERE NOT granted")]


# Other defaults, and deadlocks.


@pytest.mark.parametrize("options", ["", "&pooler=transaction"], ids=["direct", "pooler"])
async def test_a_verb_that_has_waited_sees_what_it_waited_for_whatever_isolation_is_the_default(options):
    server = own_server("default_transaction_isolation=serializable")
    url = f"{server.url}?schema=s{options}"
    try:
        async with opened(url, "one", "two") as [one, two]:
            await one.create("a")
            await two.store.inspector.get("a")
            holder = await asyncpg.connect(server.url)
            before = [b.store.flights for b in (one, two)]
            async with holding(holder, "SELECT FROM s.states FOR UPDATE"):
                sent = [send(one, "a", "one"), send(two, "a", "two")]
                await until_held(holder, 2)
            assert await asyncio.wait_for(asyncio.gather(*sent), HANGS) == [[r.Delivered()]] * 2
            assert [b.store.flights - count for b, count in zip((one, two), before, strict=True)] == [1, 1]
            await holder.close()
    finally:
        server.kill()


async def test_batches_in_opposite_order_do_not_stop_each_other():
    """A third connection holds both instances until both batches wait: neither has one that the other needs."""
    async with emptied_url() as url, opened(url, "one", "two") as [one, two]:
        for name in "ab":
            await one.create(name)
        await two.store.inspector.get("a")
        holder = await asyncpg.connect(url.partition("?")[0])
        before = [b.store.flights for b in (one, two)]
        for number in range(5):
            async with holding(holder, f"SELECT FROM {parse(url).schema}.states FOR UPDATE"):
                sent = [send(one, "ab", f"one-{number}"), send(two, "ba", f"two-{number}")]
                await until_held(holder, 2)
            assert await asyncio.wait_for(asyncio.gather(*sent), HANGS) == [[r.Delivered()] * 2] * 2
        assert [b.store.flights - count for b, count in zip((one, two), before, strict=True)] == [5, 5]
        for claim in await one.claim():
            assert sorted(entry.event.id for entry in claim.inbox) == sorted(
                f"{name}-{number}" for name in ("one", "two") for number in range(5)
            )
        await holder.close()


async def test_a_batch_that_the_server_stops_in_a_deadlock_is_sent_again():
    """The other transaction takes its locks in another order, as those of a person may."""
    async with emptied_url() as url, opened(url, "one") as [b]:
        for name in "ab":
            await b.create(name)
        holder = await asyncpg.connect(url.partition("?")[0])
        row = f"SELECT FROM {parse(url).schema}.states WHERE entity_id = '{{}}' FOR UPDATE"
        before, number = b.store.flights, 0
        while b.store.flights == before + number:  # until it is not the other one that is stopped
            number += 1
            with contextlib.suppress(asyncpg.DeadlockDetectedError):
                async with holding(holder, row.format("b")):
                    await holder.execute("SET LOCAL deadlock_timeout = '1min'")
                    sent = send(b, "ab", f"signal-{number}")
                    await until_held(holder, 1)
                    await holder.execute(row.format("a"))
            assert await asyncio.wait_for(sent, HANGS) == [r.Delivered()] * 2
        for claim in await b.claim():
            assert [entry.event.id for entry in claim.inbox] == [f"signal-{n + 1}" for n in range(number)]
        await holder.close()


async def test_a_creation_that_was_held_uses_the_execution_that_has_ended_meanwhile():
    """The flight waits for one entity. Another one of it runs and ends in that time, and is not run again."""
    async with emptied_url() as url, opened(url, "one", "two") as [one, two]:
        await two.store.inspector.get("b")
        holder = await asyncpg.connect(url.partition("?")[0])
        async with holding(holder, OPEN.format(schema=parse(url).schema, entity_id="a")):
            parts = [attached(one, name) for name in "ab"]
            sent = asyncio.ensure_future(one.store.create(parts))
            await until_held(holder, 1)
            await two.create("b", queue="another", execution_id="other", run_id="other")
            await two.end(await two.claim_one(queues=["another"]))
        begun, found = await asyncio.wait_for(sent, HANGS)
        assert isinstance(begun, r.Created)
        assert isinstance(found, r.Exists)
        assert found.instance.status is Status.COMPLETED
        await holder.close()


def attached(bench, name):
    """Return a creation with its first commit, which does nothing if there is an execution."""
    started = bench.started(name)
    first = r.Commit(
        entity_id=name,
        execution_id=started.execution_id,
        epoch=1,
        base_seq=1,
        wake=0,
        outcome=Outcome(),
        worker="one",
    )
    offer = r.EagerOffer(worker="one", queues=(QUEUE,))
    return r.Creation(started=started, attach=True, offer=offer, first=first)


def send(bench, names, value):
    """Begin to deliver one signal to each of some instances, in one batch."""
    parts = [r.Delivery(event=signal(value), entity_id=name) for name in names]
    return asyncio.ensure_future(bench.store.deliver(parts))


# Engines.


async def test_an_engine_on_a_bad_line_runs_each_activity_once():
    rng, run = random.Random(7), Run()
    async with proxied(fresh_url()) as (wire, url):

        def loses(_):
            chance = rng.random() if run.steps else 1
            wire.lose_requests, wire.lose_replies = int(chance < 0.02), int(0.02 < chance < 0.04)
            return True

        wire.when = loses
        async with asyncio.timeout(HANGS), Engine(url, registry=run.registry, lease=HANGS) as engine:
            handles = [await engine.start(run.chain, f"n{n}", id=f"n{n}") for n in range(WORKFLOWS)]
            assert await asyncio.gather(*(handle.result() for handle in handles)) == [STEPS] * WORKFLOWS
            wire.when, wire.lose_requests, wire.lose_replies = None, 0, 0
        assert set(run.runs.values()) == {1}
        assert len(run.runs) == WORKFLOWS * STEPS


@pytest.mark.parametrize("halt", ["stop", "kill"])
async def test_an_engine_survives_restarts_of_its_server(halt):
    server = own_server()
    try:
        await Run().through(server.url, Restart(server, halt))
    finally:
        server.kill()


async def test_an_engine_with_two_connections_does_all_its_work():
    run = Run()
    async with asyncio.timeout(HANGS), Engine(fresh_url("pool=2"), registry=run.registry) as engine:
        handles = [await engine.start(run.chain, f"n{n}", id=f"n{n}") for n in range(WORKFLOWS)]
        assert await asyncio.gather(*(handle.result() for handle in handles)) == [STEPS] * WORKFLOWS


# A full disk.


@contextlib.asynccontextmanager
async def small_disk(server):
    """Yield how a disk becomes full, and how there is room again: a small file system for tables, if this user may mount it.

    Otherwise the server reports what it would report then.
    """
    folder = temporary_folder() / "disk"
    folder.mkdir()
    options = f"size=4m,mode=700,uid={server.data.stat().st_uid}"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, check=False)
    if mounted.returncode:
        yield (
            lambda schema: run_script(f"INSERT INTO {schema}.ballast DEFAULT VALUES", url=server.url),
            lambda schema: run_script(f"DELETE FROM {schema}.ballast", url=server.url),
            lambda schema: run_script(FULL.format(schema=schema), url=server.url),
        )
        return
    folder.parent.chmod(0o755)
    try:
        await run_script(f"CREATE TABLESPACE small LOCATION '{folder}'", url=server.url)
        await run_script("ALTER DATABASE postgres SET default_tablespace = small", url=server.url)

        async def fill(_):
            with contextlib.suppress(OSError), (folder / "ballast").open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))

        async def make_room(_):
            (folder / "ballast").unlink()

        async def prepare(_):
            """The file system is there already."""

        yield fill, make_room, prepare
    finally:
        server.kill()
        subprocess.run(["umount", "--lazy", folder], check=True)


async def test_a_full_disk_is_an_error_that_changes_nothing_and_ends_with_it():
    server = own_server()
    try:
        async with small_disk(server) as (fill, make_room, prepare):
            async with opened(f"{server.url}?schema=s", "one") as [b]:
                await b.create("first")
                await prepare("s")
                await fill("s")
                acknowledged = []
                with pytest.raises(StoreError, match=r"\(53100\); the disk of the server is full"):
                    for number in range(10_000):
                        await b.create(f"order-{number}", tags={"k": "x" * 1000})
                        acknowledged.append(f"order-{number}")
                assert await b.store.inspector.get(f"order-{len(acknowledged)}") is None
                await make_room("s")
                await b.create(f"order-{len(acknowledged)}")
                for name in ("first", *acknowledged):
                    assert await b.store.inspector.get(name) is not None
    finally:
        server.kill()
