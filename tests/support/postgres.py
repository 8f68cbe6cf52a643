"""Real Postgres servers for tests: one per test process, started when the first test needs it."""

import atexit
import contextlib
import functools
import itertools
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import asyncpg

from resurgam.dev.postgres import Server
from resurgam.store.postgres.store import PostgresStore

_stores = itertools.count(1)

_UNSAFE: Final = ("fsync=off", "full_page_writes=off", "max_connections=200", "max_wal_size=2GB", "shared_buffers=64MB")
"""Settings of a server whose data is not needed after a crash of the machine; it survives a kill of the server."""


def temporary_folder() -> Path:
    """Return a new folder that is removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="resurgam-postgres-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def own_server(*settings: str) -> Server:
    """Return a new server that is killed when the process ends."""
    server = Server(temporary_folder(), *_UNSAFE, *settings)
    atexit.register(server.kill)
    return server.start()


@functools.cache
def shared_server() -> Server:
    """Return the server of this process."""
    return own_server()


def fresh_url(options: str = "") -> str:
    """Return the URL of a store that is empty, on the shared server."""
    return f"{shared_server().url}?schema=t{next(_stores)}{options and '&'}{options}"


_emptied: Final[list[str]] = []
"""Schemas with all tables and functions, and no rows."""

_EMPTY: Final = """
DO $$
DECLARE
    tables CONSTANT text := (
        SELECT string_agg(oid::regclass::text, ', ') FROM pg_class
        WHERE relnamespace = to_regnamespace('{schema}') AND relkind = 'r' AND relname <> 'meta'
    );
BEGIN
    IF tables IS NOT NULL THEN EXECUTE 'TRUNCATE ' || tables || ' RESTART IDENTITY'; END IF;
END $$
"""


@contextlib.asynccontextmanager
async def emptied_url() -> AsyncIterator[str]:
    """Yield the URL of a store that is empty, in a schema that others have used before: that takes less time."""
    schema = _emptied.pop() if _emptied else f"t{next(_stores)}"
    yield f"{shared_server().url}?schema={schema}"
    await run_script(_EMPTY.format(schema=schema))
    _emptied.append(schema)


async def execute(statement: str, *arguments: Any, url: str | None = None) -> list[Any]:
    """Run a statement as the superuser of the shared server, or at a URL; return its rows."""
    connection = await asyncpg.connect((url or shared_server().url).partition("?")[0])
    try:
        rows: list[Any] = await connection.fetch(statement, *arguments)
        return rows
    finally:
        await connection.close()


async def run_script(script: str, *, url: str | None = None) -> None:
    """Run statements as the superuser of the shared server, or at a URL."""
    connection = await asyncpg.connect((url or shared_server().url).partition("?")[0])
    try:
        await connection.execute(script)
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def transactions_ended() -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Yield what waits until no transaction is open on the shared server: then the feed returns all that is committed."""
    connection = await asyncpg.connect(shared_server().url)

    async def ended() -> None:
        statement = "SELECT pg_snapshot_xmin(s)::text = pg_snapshot_xmax(s)::text FROM pg_current_snapshot() AS s"
        while not await connection.fetchval(statement):
            pass

    try:
        yield ended
    finally:
        await connection.close()


def is_busy(store: PostgresStore) -> bool:
    """Whether calls of a store are under way, or looks of its waiters, which may have to listen before."""
    looks = any(waiter.is_looking for waiter in store._watcher.waiters.all)
    return looks or store._pool.busy or store._watcher.busy
