"""Check what a URL leads to, and make it a store: schema, tables and functions of this version.

Any number of processes may do this at the same time. What is missing is added by one of them, in one transaction, under a
lock that only openings take. The others wait for it, and find nothing missing.
"""

from typing import Any, Final

import asyncpg
import msgspec

from resurgam.core.errors import StoreError
from resurgam.store.postgres.functions import Library, channel_of, in_schema, literal
from resurgam.store.postgres.migrate import Meta, migrate, read_meta
from resurgam.store.postgres.url import Address

OLDEST_SERVER: Final = 14
"""The first version of Postgres that a store runs on."""

_LOOK: Final = """
SELECT current_setting('server_version_num')::int / 10000 AS server,
       pg_is_in_recovery() AS standby,
       current_setting('transaction_read_only') = 'on' AS reads_only,
       current_user AS "user",
       n.oid IS NOT NULL AS found,
       has_schema_privilege(n.oid, 'USAGE') AS usable,
       EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid AND c.relname = 'meta') AS ours,
       (SELECT c.relname FROM pg_class c WHERE c.relnamespace = n.oid ORDER BY c.relname LIMIT 1) AS relation,
       (SELECT count(DISTINCT p.proname) FROM pg_proc p
         WHERE p.pronamespace = n.oid AND right(p.proname, length($2)) = $2) AS functions
  FROM (SELECT $1::text AS name) wanted LEFT JOIN pg_namespace n ON n.nspname = wanted.name
"""

_KEYS: Final = """
SELECT (SELECT max(feed_key) FROM {schema}.events) >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint
       + {schema}.feed_offset()
"""
"""Whether the feed has keys that transactions of this server have yet to come to: its data came from another one."""

_RAISE_KEYS: Final = """
DO $do$
DECLARE
    last bigint := greatest((SELECT max(feed_key) FROM {schema}.events), (SELECT max(feed_key) FROM {schema}.states));
    ours bigint := pg_snapshot_xmin(pg_current_snapshot())::text::bigint;
BEGIN
    EXECUTE 'CREATE OR REPLACE FUNCTION {schema}.feed_offset() RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS '
        || quote_literal('SELECT ' || (last + 1 - ours) || '::bigint');
END $do$
"""


class _Found(msgspec.Struct, frozen=True):
    """What a URL leads to; *meta* is None if there are no tables yet."""

    meta: Meta | None
    complete: bool
    """Whether nothing is missing in it."""


async def open_schema(
    connection: Any, address: Address, library: Library, steps: tuple[str, ...], known: str = ""
) -> Meta:
    """Return what the schema says of itself, once its tables and functions are those that this version needs.

    Who has used a store before names its id as *known*: if it is gone, no other is made or used in its place.
    """
    async with connection.transaction():
        found = await _look(connection, address, library, steps, known)
        if found.meta is not None and found.complete:
            return found.meta
    async with connection.transaction():
        await connection.execute(
            "SET LOCAL search_path = pg_catalog; SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0"
        )
        await connection.execute(
            f"SELECT pg_advisory_xact_lock(hashtextextended({literal(channel_of(address.schema))}, 0))"
        )
        # Who alters a table that is in use waits in front of all others: not for long, but again and again.
        await connection.execute("SET LOCAL lock_timeout = '2s'")
        found = await _look(connection, address, library, steps, known)
        if not found.complete:
            await _complete(connection, address.schema, library, found.meta, steps)
        meta = found.meta if found.complete else await read_meta(connection, address.schema)
        assert meta is not None
        return meta


async def _complete(connection: Any, schema: str, library: Library, meta: Meta | None, steps: tuple[str, ...]) -> None:
    if not await connection.fetchval("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", schema):
        await connection.execute(in_schema("CREATE SCHEMA {schema}", schema))
    if meta is None or meta.version < len(steps):
        await migrate(connection, schema, meta, steps)
    await connection.execute(library.script(schema))
    if await connection.fetchval(in_schema(_KEYS, schema)):
        await connection.execute(in_schema(_RAISE_KEYS, schema))


async def _look(connection: Any, address: Address, library: Library, steps: tuple[str, ...], known: str) -> _Found:
    """Return what is there; raise `StoreError` if it cannot be used."""
    schema = address.schema
    [row] = await connection.fetch(_LOOK, schema, f"_{library.code}")
    _check_server(address, row)
    if not row["ours"]:
        if row["relation"] is not None:
            raise foreign(address, row["relation"])
        if known:
            raise StoreError(f"{address}: the store is gone, the schema {address.schema!r} was dropped; restore it")
        return _Found(None, complete=False)
    meta = await _read_meta(connection, address)
    if known not in ("", meta.id):
        raise StoreError(
            f"{address}: the store is gone, another one is in the schema {address.schema!r} now; "
            "restart this process to use that one"
        )
    check_version(address, meta, len(steps))
    if meta.version < len(steps) or row["functions"] < len(library.names):
        return _Found(meta, complete=False)
    raised = await connection.fetchval(in_schema(_KEYS, schema))
    return _Found(meta, complete=not raised)


def _check_server(address: Address, row: Any) -> None:
    if row["server"] < OLDEST_SERVER:
        raise StoreError(f"{address}: the server is Postgres {row['server']}; {OLDEST_SERVER} or newer is needed")
    if row["standby"]:
        raise StoreError(
            f"{address}: the server is a replica, which takes no writes; name the primary in the URL, or all servers with "
            "commas between them"
        )
    if row["reads_only"]:
        raise StoreError(f"{address}: the server takes no writes from this user (default_transaction_read_only is on)")
    if row["found"] and not row["usable"]:
        raise StoreError(
            f"{address}: the user {row['user']!r} may not use the schema {address.schema!r}; "
            "use the user who owns it, or choose another with ?schema="
        )


async def _read_meta(connection: Any, address: Address) -> Meta:
    """Return what the schema says of itself; raise `StoreError` if its table ``meta`` is not of this program."""
    try:
        async with connection.transaction():
            meta = await read_meta(connection, address.schema)
    except (asyncpg.UndefinedColumnError, asyncpg.WrongObjectTypeError):
        meta = None
    if meta is None:
        raise foreign(address, "meta")
    return meta


def check_version(address: Address, meta: Meta, known: int) -> None:
    """Raise `StoreError` for a schema that a version with *known* migrations cannot use."""
    if meta.oldest > known:
        raise StoreError(
            f"{address}: the schema {address.schema!r} has version {meta.version}, this Resurgam knows {known}; "
            "use a newer one"
        )


def foreign(address: Address, relation: str) -> StoreError:
    """Return the error for a schema that has tables of another program."""
    return StoreError(
        f"{address}: the schema {address.schema!r} belongs to another program, whose table {relation!r} is in it; "
        "choose another with ?schema="
    )


async def check_readable(connection: Any, address: Address, known: int) -> None:
    """Raise `StoreError` unless the schema is a store that a version with *known* migrations can read; change nothing."""
    schema = address.schema
    if not await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", in_schema("{schema}.meta", schema)):
        raise StoreError(f"{address}: there is no store in the schema {schema!r}; start a worker on it first")
    meta = await _read_meta(connection, address)
    if meta.version < known:
        raise StoreError(
            f"{address}: the schema {schema!r} has version {meta.version}, this Resurgam knows {known}; "
            "open it with a worker of this version first"
        )
    check_version(address, meta, known)
