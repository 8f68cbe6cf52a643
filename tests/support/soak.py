"""A mix of short workflows, and the size of the store that they pass through: rows by table, elements by kind of key."""

import asyncio
import re
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from resurgam import Context, Engine, Registry
from resurgam.core.errors import ActivityFailed, NotFound
from resurgam.core.flow_event import CATALOG
from resurgam.dev.redis import Server
from resurgam.flows import StepDecorator
from resurgam.runtime.context.durable_loop import Break, Continue
from resurgam.runtime.system import SystemClock
from resurgam.store import records as r
from resurgam.store.memory.store import MemoryStore
from support import postgres, redis

AT_ONCE: Final = 100
"""Workflows that run at the same time."""

BROKEN: Final = "broken"
"""A queue that no worker serves: its activities become dead letters."""

DEAD_EVERY: Final = 40

_SIZES: Final = {
    b"string": "STRLEN",
    b"hash": "HLEN",
    b"set": "SCARD",
    b"list": "LLEN",
    b"zset": "ZCARD",
    b"stream": "XLEN",
}
_ID: Final = re.compile(r"[0-9A-HJKMNP-TV-Z]{20,}|\d+")
"""Ids and numbers in the names of keys: keys that differ only in these are of one kind."""

_FAR: Final = 10**15


class Mix:
    """Short workflows of all kinds, started on one engine."""

    def __init__(self) -> None:
        self.registry = registry = Registry()
        self.engine: Engine | None = None
        self._buried: set[str] = set()

        @registry.activity
        async def work(number: int) -> int:
            return number

        @registry.activity
        async def settle(promise_id: str) -> bool:
            assert self.engine is not None
            return await self.engine.resolve(promise_id, 1)

        @registry.workflow
        async def plain(ctx: Context, number: int) -> int:
            return number

        @registry.workflow
        async def working(ctx: Context, number: int) -> int:
            return await ctx.activity(work, number)

        @registry.workflow
        async def parent(ctx: Context, number: int) -> int:
            return await ctx.workflow(working, number)

        @registry.workflow
        async def promising(ctx: Context, number: int) -> int:
            promise = ctx.promise("approval", type=int)
            await ctx.activity(settle, promise.promise_id)
            return await promise

        @registry.workflow
        async def listening(ctx: Context, number: int) -> int:
            return await ctx.listen("go", type=int)

        @registry.workflow
        async def looping(ctx: Context, number: int) -> int:
            async def body(ctx: Context, done: int) -> Continue[int] | Break[int]:
                await ctx.activity(work, done)
                return Break(done) if done >= 5 else Continue(done + 1)

            return await ctx.loop(body, 1, forget_every=1)

        @registry.workflow
        async def failing(ctx: Context, number: int) -> int:
            raise ValueError(f"number {number}")

        @registry.workflow
        async def updated(ctx: Context, number: int) -> int:
            done: list[int] = []

            @ctx.on_update("add")
            async def add(more: int) -> int:
                done.append(await ctx.activity(work, more))
                return number + more

            await ctx.until(lambda: bool(done))
            await ctx.handlers_finished()
            return number

        @registry.workflow
        async def continued(ctx: Context, number: int, left: int = 3) -> int:
            if left:
                ctx.continue_as_new(number, left - 1)
            return number

        @registry.activity(queue=BROKEN)
        async def never() -> None: ...

        @registry.workflow
        async def dead(ctx: Context, number: int) -> int:
            try:
                await ctx.activity(never)
            except ActivityFailed:
                return number
            raise AssertionError("it is a dead letter, and fails by the rule for those")

        @StepDecorator(registry)
        async def price(order: str) -> int:
            return len(order)

        self._plain = (plain, working, parent, promising, looping, failing, continued)
        self._listening = listening
        self._updated = updated
        self._dead = dead

    async def run(self, numbers: range) -> None:
        """Run so many workflows to their ends."""
        free = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> None:
            async with free:
                await self._one(number)

        for start in range(numbers.start, numbers.stop, 5000):  # so that there are not too many tasks
            await asyncio.gather(*(one(number) for number in range(start, min(start + 5000, numbers.stop))))

    async def _one(self, number: int) -> None:
        assert self.engine is not None
        engine, kind = self.engine, number % 10
        handle: Any
        if number % DEAD_EVERY == 0:
            handle = await engine.start(self._dead, number, id=f"dead-{number}")
            await self._bury(handle.entity_id)
        elif kind == 7:
            handle = await engine.signal_with_start(
                self._listening, number, id=f"listening-{number}", signal="go", value=number
            )
        elif kind == 8:
            handle = await engine.start_flow(["price"], {"order": f"o-{number}"}, id=f"flow-{number}")
        elif kind == 9:
            handle = await engine.start(self._updated, number)
            await handle.update("add", 1)
        else:
            handle = await engine.start(self._plain[kind], number, tags={"customer": f"c-{number}"})
        [ended] = await asyncio.gather(handle.result(), return_exceptions=True)
        if not isinstance(ended, NotFound):  # on a slow machine it is removed before it is asked for
            assert isinstance(ended, Exception) == (kind == 5), ended

    async def _bury(self, entity_id: str) -> None:
        """Make dead letters of all activities that no worker serves, until that of an entity is among them."""
        assert self.engine is not None
        store = self.engine.store
        while entity_id not in self._buried:
            for task in await store.claim_activities("breaker", [BROKEN], 100):
                lease = r.Lease(
                    entity_id=task.entity_id, execution_id=task.execution_id, epoch=task.epoch, ref=task.request.ref
                )
                await store.release([r.Release(lease=lease, failed="it kills its workers", final=True)])
                self._buried.add(task.entity_id)
            await asyncio.sleep(0.01)
        self._buried.discard(entity_id)


async def drained(engine: Engine) -> None:
    """Wait until retention has removed everything but the catalog, and the leases of the last workflows would have ended."""
    inspector = engine.store.inspector
    await asyncio.sleep(1.5)
    while await inspector.ended(r.EndedQuery(before=_FAR, limit=1)):
        await asyncio.sleep(0.1)
    left = (await inspector.list(r.Query(limit=10))).instances
    assert {one.kind for one in left} <= {CATALOG}, left


Count = Callable[[], Coroutine[Any, Any, Counter[str]]]


class Soaked:
    """A store of one kind: its URL, or itself; how to count what is in it, and how to measure it in bytes."""

    def __init__(self, url: Any, count: Count, size: Callable[[], Coroutine[Any, Any, int]]) -> None:
        self.url = url
        self.count = count
        self.size = size


@asynccontextmanager
async def open_soaked(kind: str, folder: Path) -> AsyncIterator[Soaked]:
    """Open an empty store that can be counted."""
    match kind:
        case "memory":
            yield _memory()
        case "sqlite":
            yield _sqlite(folder / "soak.db")
        case "redis":
            yield _redis([redis.shared_server()], redis.fresh_url())
        case "redis-cluster":
            yield _redis(redis.shared_cluster().primaries, redis.fresh_cluster_url())
        case _:
            async with postgres.emptied_url() as url:
                yield _postgres(url)


def _memory() -> Soaked:

    store = MemoryStore(SystemClock(), lease=1000)

    async def count() -> Counter[str]:
        return Counter(_lengths(store, "store", set()))

    async def size() -> int:
        return 0

    return Soaked(store, count, size)


def _lengths(value: Any, name: str, seen: set[int]) -> dict[str, int]:
    """Return the lengths of all containers that an object of the memory store leads to."""
    if id(value) in seen:
        return {}
    seen.add(id(value))
    found: dict[str, int] = {}
    if isinstance(value, dict | list | set | frozenset):
        found[name] = len(value)
        for part in value.values() if isinstance(value, dict) else value:
            for key, number in _lengths(part, f"{name}.*", seen).items():
                found[key] = found.get(key, 0) + number
    elif type(value).__module__.startswith("resurgam.store.memory"):
        slots = [getattr(value, one, None) for one in getattr(value, "__slots__", ())]
        parts = {**getattr(value, "__dict__", {}), **dict(zip(getattr(value, "__slots__", ()), slots, strict=True))}
        for key, part in parts.items():
            found |= _lengths(part, f"{name}.{key}", seen)
    return found


def _sqlite(path: Path) -> Soaked:
    def ask(statement: str) -> list[Any]:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()

    async def count() -> Counter[str]:
        tables = [name for (name,) in ask("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return Counter({name: ask(f'SELECT count(*) FROM "{name}"')[0][0] for name in tables})

    async def size() -> int:
        [[pages]], [[free]], [[page]] = (ask(f"PRAGMA {one}") for one in ("page_count", "freelist_count", "page_size"))
        return int((pages - free) * page)

    return Soaked(f"sqlite:///{path}?synchronous=off", count, size)


def _postgres(url: str) -> Soaked:
    schema = url.rpartition("=")[2]
    named = f"FROM pg_class WHERE relnamespace = to_regnamespace('{schema}') AND relkind = 'r'"

    async def count() -> Counter[str]:
        tables = [row["relname"] for row in await postgres.execute(f"SELECT relname {named}")]
        rows = {one: await postgres.execute(f'SELECT count(*) AS n FROM {schema}."{one}"') for one in tables}
        return Counter({one: found[0]["n"] for one, found in rows.items()})

    async def size() -> int:
        for row in await postgres.execute(f"SELECT relname {named}"):
            await postgres.execute(f'VACUUM {schema}."{row["relname"]}"')
        [row] = await postgres.execute(f"SELECT sum(pg_total_relation_size(oid))::bigint AS n {named}")
        return int(row["n"])

    return Soaked(url, count, size)


def _redis(servers: list[Server], url: str) -> Soaked:
    prefix = url.rpartition("=")[2]

    async def count() -> Counter[str]:
        found: Counter[str] = Counter()
        for server in servers:
            for key in server.ask("KEYS", f"*{prefix}*"):
                kind = _ID.sub("#", key.decode().partition("}:")[2] or key.decode())
                found[f"keys {kind}"] += 1
                found[f"elements {kind}"] += server.ask(_SIZES[server.ask("TYPE", key)], key)
        return found

    async def size() -> int:
        infos = [server.ask("INFO", "memory").decode() for server in servers]
        return sum(int(re.findall(r"^used_memory:(\d+)", info, re.MULTILINE)[0]) for info in infos)

    return Soaked(url, count, size)
