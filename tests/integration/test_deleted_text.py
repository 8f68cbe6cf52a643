"""After `engine.delete` no row and no key of a store holds a text of the entity."""

import sqlite3
from contextlib import asynccontextmanager

import pytest

from resurgam import Context, Engine, Registry
from resurgam.runtime.context.durable_loop import Break, Continue
from resurgam.runtime.system import SystemClock
from resurgam.store.open import open_store
from resurgam.store.records import LogGrown
from support import postgres, redis

SECRET = "Lovelace"
READS = {
    b"string": ("GET",),
    b"hash": ("HGETALL",),
    b"set": ("SMEMBERS",),
    b"list": ("LRANGE", 0, -1),
    b"zset": ("ZRANGE", 0, -1, "WITHSCORES"),
    b"stream": ("XRANGE", "-", "+"),
}


def build():
    registry = Registry()

    @registry.activity
    async def greet(name: str) -> str:
        return f"Dear {name}"

    @registry.activity(queue="nobody")
    async def never(name: str) -> str:
        return name

    @registry.workflow
    async def customer(ctx: Context, name: str) -> str:
        async def body(ctx: Context, number: int) -> Continue[int] | Break[int]:
            await ctx.activity(greet, name)
            return Break(number) if number > 2 else Continue(number + 1)

        @ctx.on_query("name")
        def name_of() -> str:
            return name

        await ctx.loop(body, 0, forget_every=1)
        ctx.set("name", name)
        ctx.promise(f"promise of {name}")
        await ctx.workflow(child, name, id="child")
        open_work = ctx.activity(never, name)
        await ctx.listen("go")
        return await open_work

    @registry.workflow
    async def child(ctx: Context, name: str) -> str:
        return name

    return registry, customer


async def sqlite_text(url):
    path = url.removeprefix("sqlite:///")
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return repr([connection.execute(f'SELECT * FROM "{table}"').fetchall() for table in tables])
    finally:
        connection.close()


async def postgres_text(url):
    schema = url.rpartition("=")[2]
    named = f"SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace('{schema}') AND relkind = 'r'"
    tables = [row["relname"] for row in await postgres.execute(named)]
    return repr([await postgres.execute(f'SELECT * FROM {schema}."{table}"') for table in tables])


async def redis_text(url):
    servers = redis.shared_cluster().primaries if "cluster" in url else [redis.shared_server()]
    found = []
    for server in servers:
        for key in server.ask("KEYS", f"*{url.rpartition('=')[2]}*"):
            verb, *options = READS[server.ask("TYPE", key)]
            found.append((key, server.ask(verb, key, *options)))
    return repr(found)


async def open_run(engine, customer):
    """Start a run that waits, with a signal that it does not take, and traces of all kinds."""
    handle = await engine.start(customer, SECRET, id="c-42", tags={"name": SECRET})
    await handle.signal("other", SECRET)
    await handle.query("name")
    store = engine.store
    while True:
        found = await store.inspector.get("c-42")
        if "listen_started" in [entry.type for entry in await handle.history()]:
            return
        await store.wait(LogGrown(entity_id="c-42", execution_id=found.execution_id, last_seq=found.last_seq))


@asynccontextmanager
async def another_worker(url):
    """Claim the open activity by another opening of the store, which then calls nothing any more."""
    store = open_store(url, SystemClock(), name="another", lease=60_000)
    try:
        [task] = await store.claim_activities("another", ["nobody"], 1)
        assert SECRET in bytes(task.request.input).decode()
        yield
    finally:
        await store.close()


async def check(url, text_of):
    registry, customer = build()
    async with Engine(url, registry=registry) as engine:
        await open_run(engine, customer)
        async with another_worker(url):
            assert SECRET in await text_of(url)
            assert await engine.delete("c-42", tree=True, reason="request 7") == 2
            text = await text_of(url)
    assert SECRET not in text
    assert "request 7" in text


async def test_no_row_of_a_sqlite_file_holds_a_text_of_a_deleted_entity(tmp_path):
    await check(f"sqlite:///{tmp_path}/shop.db", sqlite_text)


async def test_no_row_of_a_postgres_store_holds_a_text_of_a_deleted_entity():
    async with postgres.emptied_url() as url:
        await check(url, postgres_text)


@pytest.mark.parametrize("fresh", [redis.fresh_url, redis.fresh_cluster_url], ids=["server", "cluster"])
async def test_no_key_of_a_redis_store_holds_a_text_of_a_deleted_entity(fresh):
    await check(fresh(), redis_text)
