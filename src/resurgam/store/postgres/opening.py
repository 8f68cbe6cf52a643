"""Check what a URL leads to, and make it a store: schema, tables and functions of this version."""

from typing import Any, Final

from resurgam.core.errors import StoreError
from resurgam.store.postgres.functions import Library, channel_of, in_schema, literal
from resurgam.store.postgres.migrate import Meta, migrate, read_meta
from resurgam.store.postgres.url import Address

OLDEST_SERVER: Final = 14

_LOOK: Final = """
SELECT current_setting('server_version_num')::int / 10000 AS server,
       pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on' AS reads_only,
       n.oid IS NOT NULL AS found,
       to_regclass($2) IS NOT NULL AS ours,
       (SELECT c.relname FROM pg_class c WHERE c.relnamespace = n.oid LIMIT 1) AS relation,
       (SELECT count(DISTINCT p.proname) FROM pg_proc p
         WHERE p.pronamespace = n.oid AND right(p.proname, length($3)) = $3) AS functions
  FROM (SELECT $1::text AS name) wanted LEFT JOIN pg_namespace n ON n.nspname = wanted.name
"""


async def open_schema(connection: Any, address: Address, library: Library, steps: tuple[str, ...]) -> Meta:
    """Return what the schema says of itself, once its tables and functions are those that this version needs."""
    schema = address.schema
    meta = await _look(connection, address, library, steps)
    if meta is not None:
        return meta
    async with connection.transaction():
        await connection.execute(f"SELECT pg_advisory_xact_lock(hashtextextended({literal(channel_of(schema))}, 0))")
        found = await _look(connection, address, library, steps)
        if found is not None:
            return found
        await connection.execute(in_schema("CREATE SCHEMA IF NOT EXISTS {schema}", schema))
        there = await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", in_schema("{schema}.meta", schema))
        await migrate(connection, schema, await read_meta(connection, schema) if there else None, steps)
        await connection.execute(library.script(schema))
        meta = await read_meta(connection, schema)
        assert meta is not None
        return meta


async def _look(connection: Any, address: Address, library: Library, steps: tuple[str, ...]) -> Meta | None:
    """Return what the schema says of itself; None if something is missing in it. Raise `StoreError` if it cannot be used."""
    schema = address.schema
    [found] = await connection.fetch(_LOOK, schema, in_schema("{schema}.meta", schema), f"_{library.code}")
    if found["server"] < OLDEST_SERVER:
        raise StoreError(f"{address}: the server is Postgres {found['server']}; {OLDEST_SERVER} or newer is needed")
    if not found["ours"]:
        if found["relation"] is not None:
            raise StoreError(
                f"{address}: the schema {schema!r} belongs to another program; choose another with ?schema="
            )
        return None
    meta = await read_meta(connection, schema)
    if meta is None or meta.version < len(steps) or found["functions"] < len(library.names):
        return None
    if meta.oldest > len(steps):
        raise StoreError(
            f"{address}: the schema {schema!r} has version {meta.version}, this Resurgam knows {len(steps)}; use a newer one"
        )
    return meta


async def check_readable(connection: Any, address: Address, known: int) -> None:
    """Raise `StoreError` unless the schema is a store that a version with *known* migrations can read; change nothing."""
    schema = address.schema
    if not await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", in_schema("{schema}.meta", schema)):
        raise StoreError(f"{address}: there is no store in the schema {schema!r}; start a worker on it first")
    meta = await read_meta(connection, schema)
    if meta is None or meta.version < known:
        raise StoreError(
            f"{address}: the schema {schema!r} has version {meta.version if meta else 0}, this Resurgam knows {known}; "
            "open it with a worker of this version first"
        )
    if meta.oldest > known:
        raise StoreError(
            f"{address}: the schema {schema!r} has version {meta.version}, this Resurgam knows {known}; use a newer one"
        )
