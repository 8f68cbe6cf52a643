"""The opening of a Postgres store: what is checked, created and brought up to date, by one process or many."""

import asyncio
import itertools
import logging
from contextlib import asynccontextmanager
from urllib.parse import quote

import asyncpg
import pytest

from resurgam.errors import StoreError
from resurgam.runtime.system import SystemClock
from resurgam.store.postgres import opening
from resurgam.store.postgres.functions import join, library
from resurgam.store.postgres.migrate import migrations
from resurgam.store.postgres.pool import Pool
from resurgam.store.postgres.store import PostgresStore
from resurgam.store.postgres.url import parse
from resurgam.testing import ManualClock
from resurgam.testing.contract.bench import LEASE, Bench, OpensStores
from support.postgres import execute, fresh_url, own_server, run_script, shared_server, temporary_folder

SECRET = "s3cret"
ROLES = itertools.count(1)

ADDED = """-- oldest: 1
ALTER TABLE {schema}.stored_values ADD COLUMN note text;
CREATE TABLE {schema}.extra (key text PRIMARY KEY);
"""
"""A migration that versions which do not know it can live with."""

SHUTTING_OUT = "ALTER TABLE {schema}.stored_values RENAME COLUMN value TO content;"


@asynccontextmanager
async def opened(url, *, steps=None, code=None):
    pool = Pool(parse(url), SystemClock(), name="test", lease=10_000, steps=steps, code=code)
    try:
        await pool._opened()
        yield pool
    finally:
        await pool.close()


async def refusal(url, **options):
    """Return the error with which a store is refused; it must say nothing of the password."""
    with pytest.raises(StoreError) as refused:
        async with opened(url, **options):
            pass
    cause = refused.value
    while cause is not None:
        assert SECRET not in str(cause)
        cause = cause.__cause__
    return str(refused.value)


async def role(rights=""):
    """Create a user with few rights; return the user's URL of the shared server, without options."""
    name = f"user{next(ROLES)}"
    await run_script(f"CREATE ROLE {name} LOGIN PASSWORD '{SECRET}'; {rights.format(name)}")
    return name, f"postgresql://{name}:{SECRET}@127.0.0.1:{shared_server().port}/postgres"


# What cannot work.


async def test_a_wrong_password_is_said():
    shared = shared_server()
    said = await refusal(f"postgresql://resurgam:{SECRET}@127.0.0.1:{shared.port}/postgres")
    assert said.startswith(f"postgresql://resurgam@127.0.0.1:{shared.port}/postgres: password authentication failed")
    assert said.endswith("the user or the password of the URL is wrong")


async def test_an_unknown_host_is_said():
    said = await refusal(f"postgresql://me:{SECRET}@no-such-host.invalid/db")
    assert said.startswith("postgresql://me@no-such-host.invalid/db: the host is not known: ")


async def test_a_host_where_no_server_listens_is_said():
    assert await refusal(f"postgresql://me:{SECRET}@127.0.0.1:1/db") == (
        "postgresql://me@127.0.0.1:1/db: no server listens there"
    )


async def test_an_unknown_database_is_said():
    said = await refusal(shared_server().url.replace("/postgres", "/missing"))
    assert said.endswith(
        'database "missing" does not exist (3D000); create the database, or name another one in the URL'
    )


async def test_a_replica_is_said_also_if_it_has_the_store():
    primary = own_server()
    async with opened(primary.url):
        pass
    replica = primary.standby(temporary_folder(), "fsync=off")
    try:
        said = await refusal(replica.url)
        assert "the server is a replica, which takes no writes; name the primary in the URL" in said
        url = f"postgresql://resurgam:{primary.password}@127.0.0.1:{replica.port},127.0.0.1:{primary.port}/postgres"
        async with opened(url) as pool:  # of several servers the primary is found
            assert (await pool.fetch("calls_find", "me", 1, 1)) == []
    finally:
        replica.stop()
        primary.stop()


async def test_a_user_who_may_not_write_is_said():
    name, url = await role("ALTER ROLE {0} SET default_transaction_read_only = on")
    assert "takes no writes from this user" in await refusal(f"{url}?schema={name}")


async def test_missing_rights_on_the_database_are_said():
    _, url = await role()
    said = await refusal(f"{url}?schema=forbidden")
    assert "permission denied for database postgres (42501); the user of the URL needs CREATE on the database" in said


async def test_missing_rights_on_the_schema_are_said():
    other = fresh_url()
    async with opened(other):
        pass
    schema = parse(other).schema
    name, url = await role()
    said = await refusal(f"{url}?schema={schema}")
    assert f"the user '{name}' may not use the schema '{schema}'; use the user who owns it" in said


async def test_missing_rights_on_the_tables_are_said():
    other = fresh_url()
    async with opened(other):
        pass
    schema = parse(other).schema
    _, url = await role(f"GRANT USAGE ON SCHEMA {schema} TO {{0}}")
    assert "permission denied for table meta (42501)" in await refusal(f"{url}?schema={schema}")


async def test_a_user_without_rights_on_the_database_can_use_a_schema_that_was_made_for_the_user():
    name, url = await role("CREATE SCHEMA own_{0} AUTHORIZATION {0}")
    async with opened(f"{url}?schema=own_{name}") as pool:
        assert pool.store_id


async def test_a_server_that_is_too_old_is_said(monkeypatch):
    monkeypatch.setattr(opening, "OLDEST_SERVER", 99)
    said = await refusal(fresh_url())
    assert "the server is Postgres 1" in said
    assert said.endswith("; 99 or newer is needed")


@pytest.mark.parametrize("table", ["orders", "meta"])
async def test_a_schema_of_another_program_is_said_and_left_alone(table):
    url = fresh_url()
    schema = parse(url).schema
    await run_script(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.{table} (id int)")
    said = await refusal(url)
    assert f"the schema '{schema}' belongs to another program, whose table '{table}' is in it" in said
    tables = "SELECT relname FROM pg_class WHERE relnamespace = $1::regnamespace"
    assert [row[0] for row in await execute(tables, schema)] == [table]


async def test_a_schema_of_a_newer_version_is_said():
    url, newer = fresh_url(), (*migrations(), SHUTTING_OUT)
    async with opened(url, steps=newer):
        pass
    said = await refusal(url)
    assert f"has version {len(newer)}, this Resurgam knows {len(migrations())}; use a newer one" in said


async def test_an_error_at_the_opening_is_raised_by_every_call_and_the_next_call_tries_again():
    url = fresh_url()
    schema = parse(url).schema
    await run_script(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.orders (id int)")
    pool = Pool(parse(url), SystemClock(), name="test", lease=10_000)
    answers = await asyncio.gather(*(pool.fetch("calls_find", "me", 1, n) for n in range(3)), return_exceptions=True)
    assert len({str(answer) for answer in answers if isinstance(answer, StoreError)}) == 1
    assert all(isinstance(answer, StoreError) for answer in answers)
    await run_script(f"DROP TABLE {schema}.orders")
    assert await pool.fetch("calls_find", "me", 1, 1) == []
    await pool.close()


async def test_nothing_is_sent_before_the_first_call():
    pool = Pool(parse("postgresql://me@127.0.0.1:1/db"), SystemClock(), name="test", lease=10_000)
    await asyncio.sleep(0)
    await pool.close()


async def test_a_server_that_is_starting_up_is_waited_for():
    server = own_server()
    async with opened(server.url):
        pass
    server.kill()
    starting = asyncio.create_task(asyncio.to_thread(server.start))
    while not server.runs:
        await asyncio.sleep(0.001)
    while True:  # first nothing listens, which is no reason to wait
        said = ""
        try:
            async with opened(server.url):
                break
        except StoreError as error:
            said = str(error)
        assert "no server listens there" in said
        await asyncio.sleep(0.001)
    await starting
    server.stop()


# Many at once, and versions side by side.


async def test_many_workers_open_an_empty_schema_at_once():
    url = fresh_url("pool=2")
    pools = [Pool(parse(url), SystemClock(), name="test", lease=10_000) for _ in range(12)]
    await asyncio.gather(*(pool._opened() for pool in pools))
    assert len({pool.store_id for pool in pools}) == 1
    rows = await execute(f"SELECT version FROM {parse(url).schema}.meta")
    assert [row["version"] for row in rows] == [len(migrations())]
    await asyncio.gather(*(pool.close() for pool in pools))


async def test_many_workers_of_two_versions_migrate_at_once():
    url, newer = fresh_url("pool=2"), (*migrations(), ADDED)
    code = join([library().text, "-- the functions of another version\n"])
    async with opened(url):
        pass
    old = [Pool(parse(url), SystemClock(), name="old", lease=10_000) for _ in range(6)]
    new = [Pool(parse(url), SystemClock(), name="new", lease=10_000, steps=newer, code=code) for _ in range(6)]
    pools = [pool for pair in zip(old, new, strict=True) for pool in pair]
    await asyncio.gather(*(pool._opened() for pool in pools))
    assert await asyncio.gather(*(pool.fetch("calls_find", "me", 1, 1) for pool in pools)) == [[]] * 12
    rows = await execute(f"SELECT version, oldest FROM {parse(url).schema}.meta")
    assert [tuple(row) for row in rows] == [(len(newer), 1)]
    await asyncio.gather(*(pool.close() for pool in pools))


async def test_a_migration_does_not_wait_long_in_front_of_others(monkeypatch, caplog):
    """It gives up, lets the others pass, and tries again."""
    url = fresh_url()
    async with opened(url):
        pass
    schema = parse(url).schema
    holder = await asyncpg.connect(shared_server().url)
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute(f"LOCK TABLE {schema}.stored_values IN ACCESS SHARE MODE")
    tried = []
    real = opening.migrate

    async def migrate(connection, *arguments):
        tried.append(len(tried))
        await connection.execute("SET LOCAL lock_timeout = '50ms'")
        if len(tried) == 3:
            await transaction.rollback()
        await real(connection, *arguments)

    monkeypatch.setattr(opening, "migrate", migrate)
    with caplog.at_level(logging.CRITICAL):
        async with opened(url, steps=(*migrations(), ADDED)):
            pass
    assert len(tried) == 3
    await holder.close()


async def test_code_of_one_version_runs_on_the_schema_of_the_next():
    url, newer = fresh_url(), (*migrations(), ADDED)
    async with opened(url) as old:
        put = ["key", b"old".hex(), None, True]
        await old.ask("put_value", put)
        async with opened(url, steps=newer) as new:
            await new.ask("put_value", ["key", b"new".hex(), None, True])
            assert (await old.select("value", 0, "key"))[0]["value"] == b"new"
            await old.ask("put_value", put)
            assert (await new.select("value", 0, "key"))[0]["value"] == b"old"
    async with opened(url) as later:  # also if it is opened afterwards
        assert (await later.select("value", 0, "key"))[0]["value"] == b"old"


async def test_a_migration_that_fails_leaves_nothing_behind():
    url = fresh_url()
    async with opened(url):
        pass
    schema = parse(url).schema
    said = await refusal(url, steps=(*migrations(), ADDED + "SELECT 1 / 0;"))
    assert "'opening' failed: division by zero" in said
    assert await execute("SELECT to_regclass($1) IS NULL", f"{schema}.extra") == [(True,)]
    async with opened(url):
        pass


async def test_functions_of_several_versions_stay_side_by_side():
    url = fresh_url()
    code = join([library().text, "-- the functions of another version\n"])
    async with opened(url) as old, opened(url, code=code) as new:
        assert old._library.code != new._library.code
        assert await old.fetch("calls_find", "me", 1, 1) == await new.fetch("calls_find", "me", 1, 1) == []


@pytest.mark.parametrize("options", ["", "&pooler=transaction"])
async def test_functions_that_a_user_finds_first_are_not_taken_for_those_of_the_server(options):
    name, url = await role(
        """
        CREATE SCHEMA own_{0} AUTHORIZATION {0};
        CREATE SCHEMA false_{0};
        CREATE FUNCTION false_{0}.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT NULL::timestamptz';
        GRANT USAGE ON SCHEMA false_{0} TO {0};
        ALTER ROLE {0} SET search_path = false_{0}, pg_catalog;
        """
    )
    clock = SystemClock()
    store = PostgresStore(f"{url}?schema=own_{name}{options}", clock, name="test", lease=LEASE)
    try:
        bench = Bench(store, clock, OpensStores())
        created = await bench.create("order")
        assert [claim.instance.execution_id for claim in await bench.claim("worker")] == [created.execution_id]
    finally:
        await store.close()


@pytest.mark.parametrize("name", ["Umläut", 'with"quote', "with\\slash", "with space", "select", "x" * 63])
async def test_a_store_works_in_a_schema_of_an_unusual_name(name):
    url = f"{shared_server().url}?schema={quote(name)}"
    clock = ManualClock()
    store = PostgresStore(url, clock, name="test", lease=LEASE)
    try:
        bench = Bench(store, clock, OpensStores())
        created = await bench.create("order")
        assert [claim.instance.execution_id for claim in await bench.claim("worker")] == [created.execution_id]
    finally:
        await store.close()
    await run_script(f'DROP SCHEMA "{name.replace(chr(34), chr(34) * 2)}" CASCADE')


async def test_keys_of_the_feed_rise_on_after_the_data_came_to_a_server_with_lower_ones():
    url = fresh_url()
    schema = parse(url).schema
    async with opened(url):
        pass
    ahead = 10**12
    row = f"INSERT INTO {schema}.events (execution_id, seq, feed_key, type, body) VALUES ('x', 1, {ahead}, 't', '{{}}')"
    await run_script(row)
    async with opened(url):
        pass
    current = f"SELECT pg_current_xact_id()::text::bigint + {schema}.feed_offset() > {ahead}"
    assert await execute(current) == [(True,)]
    offset = f"SELECT {schema}.feed_offset()"
    before = await execute(offset)
    async with opened(url):
        pass
    assert await execute(offset) == before
