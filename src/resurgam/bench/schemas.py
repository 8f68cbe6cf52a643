"""Measure on the server of a Postgres URL: each store has a schema of its own, which is dropped afterwards."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg
import msgspec

from resurgam.bench.raw import commits_of
from resurgam.core import event as events
from resurgam.core.event import encode_event
from resurgam.core.outcome import ActivityRequest
from resurgam.engine import Engine
from resurgam.store.postgres.connection import connect
from resurgam.store.postgres.functions import in_schema
from resurgam.store.postgres.url import Address, parse

_AT_ONCE: Final = 25_000
"""Copies that one transaction makes."""

_SHOWN: Final = ("synchronous_commit", "fsync", "full_page_writes", "wal_sync_method", "shared_buffers")
"""The settings of a server that say how it keeps its data."""

_RAW: Final = """
WITH moved AS (
    UPDATE {schema}.states SET last_seq = last_seq + cardinality($2::text[]), covered = $4 WHERE execution_id = $1
    RETURNING execution_id, last_seq - cardinality($2::text[]) AS base
)
INSERT INTO {schema}.events (execution_id, seq, feed_key, type, body)
SELECT m.execution_id, m.base + e.number, 1, e.type, e.body
FROM moved m CROSS JOIN unnest($2::text[], $3::text[]) WITH ORDINALITY e (type, body, number)
"""
"""A commit without any rule: it writes the rows that a step writes."""

_COLUMNS: Final = """
SELECT column_name::text AS name FROM information_schema.columns
WHERE table_schema = $1 AND table_name = $2 AND is_generated = 'NEVER' AND is_identity = 'NO' ORDER BY ordinal_position
"""

_SLEEPER: Final = """
SELECT i.execution_id, i.entity_id, i.run_id, i.tree_id FROM {schema}.states s
JOIN {schema}.instances i ON i.execution_id = s.execution_id
WHERE i.name = 'sleeper' AND s.wake_at IS NOT NULL AND s.leased_until IS NULL LIMIT 1
"""


@dataclass(frozen=True)
class Schemas:
    """Stores in schemas whose names begin alike, on the server of a URL."""

    address: Address
    server: str
    prefix: str
    _url: str = field(repr=False)

    @property
    def shared(self) -> bool:
        """Whether processes can share a store: they can."""
        return True

    @property
    def originals(self) -> int:
        """How many workflows must sleep before they are copied."""
        return 1

    def __str__(self) -> str:
        return f"{self.address} in schemas whose names begin with {self.prefix}"

    def url(self, name: str) -> str:
        """Return the URL of a store in a schema of its own."""
        parts = urlsplit(self._url)
        options = [option for option in parse_qsl(parts.query) if option[0] != "schema"]
        return urlunsplit(parts._replace(query=urlencode([*options, ("schema", self.prefix + name)])))

    def file(self, name: str) -> Path | None:
        """Return None: a store on a server has no file here."""
        return None

    @contextlib.contextmanager
    def raw(self) -> Iterator[None]:
        """Open nothing: the limit is that of `calls`, through the client library of the store."""
        yield None

    async def calls(self, history: Sequence[events.Event], times: int) -> Sequence[float]:
        """Write a history with one statement for each of its commits, one after another; return the seconds of each time."""
        async with Engine(self.url("raw"), worker=False) as engine:
            await engine.store.inspector.stats()  # the tables are there from now on
        async with connected(self.address) as connection:
            schema = self.prefix + "raw"
            statement = await connection.prepare(in_schema(_RAW, schema))
            found = []
            for number in range(times):
                execution_id = f"raw-{number}"
                await connection.execute(
                    in_schema(
                        "INSERT INTO {schema}.states (execution_id, entity_id, queue, status, last_seq) "
                        "VALUES ($1, $1, '', '', 0)",
                        schema,
                    ),
                    execution_id,
                )
                commits = [(execution_id, *_rows(commit)) for commit in commits_of(history)]
                begin = time.perf_counter()
                for commit in commits:
                    await statement.fetch(*commit)
                found.append(time.perf_counter() - begin)
            return found

    async def memory(self) -> int | None:
        """Return the bytes of all tables and indexes of this run."""
        async with connected(self.address) as connection:
            size: int = await connection.fetchval(
                "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c "
                "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND starts_with(n.nspname, $1)",
                self.prefix,
            )
            return size

    async def copy_sleepers(self, name: str, number: int) -> int:
        """Copy a sleeping workflow of a store; then let the server vacuum the tables, as it would in the long run."""
        schema = self.prefix + name
        async with connected(self.address) as connection:
            ids = await connection.fetchrow(in_schema(_SLEEPER, schema))
            statements = [await _copying(connection, schema, table) for table in ("instances", "states", "events")]
            for first in range(0, number, _AT_ONCE):
                async with connection.transaction():
                    for statement in statements:
                        await connection.execute(statement, *ids, first, min(first + _AT_ONCE, number) - 1)
            for table in ("instances", "states", "events"):
                await connection.execute(in_schema(f"VACUUM (ANALYZE) {{schema}}.{table}", schema))
            with contextlib.suppress(asyncpg.InsufficientPrivilegeError):
                await connection.execute("CHECKPOINT")
        return number


async def _copying(connection: Any, schema: str, table: str) -> str:
    """Return the statement that copies the rows of an execution, for the numbers from $5 to $6.

    The ids $1 to $4 end with the number of the copy, wherever they stand. Each copy wakes a millisecond after the one before.
    """
    columns = [row["name"] for row in await connection.fetch(_COLUMNS, schema, table)]
    values = []
    for column in columns:
        value = f"o.{column}"
        if column == "wake_at":
            value = f"{value} + n"
        elif column.endswith("_id") or column in ("first_run", "body"):
            for place in ("$1::text", "$2::text", "$3::text", "$4::text"):
                value = f"replace({value}, {place}, left({place}, -8) || lpad(to_hex(n), 8, '0'))"
        values.append(value)
    text = (
        f"INSERT INTO {{schema}}.{table} ({', '.join(columns)}) SELECT {', '.join(values)} "  # noqa: S608 -- our own names
        f"FROM {{schema}}.{table} o CROSS JOIN generate_series($5::int, $6::int) n WHERE o.execution_id = $1"
    )
    return in_schema(text, schema)


def _rows(commit: Sequence[events.Event]) -> tuple[list[str], list[str], str | None]:
    """Return the types and bodies of events, and the activities that the lease covers then."""
    requests = [_request(entry) for entry in commit if isinstance(entry, events.ActivityScheduled)]
    covered = msgspec.json.encode(requests).decode() if requests else None
    return [entry.type for entry in commit], [encode_event(entry).decode() for entry in commit], covered


def _request(entry: events.ActivityScheduled) -> list[object]:
    request = ActivityRequest(ref=entry.seq, name=entry.name, queue=entry.queue, input=entry.input, entity_id="0" * 26)
    return [entry.seq, entry.queue, msgspec.json.encode(request).decode()]


@contextlib.contextmanager
def open_schemas(url: str) -> Iterator[Schemas]:
    """Choose new names for schemas on the server of *url*, and drop all of them afterwards."""
    address = parse(url)
    prefix = f"{address.schema[:30]}_bench_{token_hex(4)}_"
    schemas = Schemas(address, asyncio.run(settings_of(address)), prefix, url)
    try:
        yield schemas
    finally:
        asyncio.run(_drop_all(address, prefix))


@contextlib.asynccontextmanager
async def connected(address: Address) -> AsyncIterator[Any]:
    """Connect, without the limits that a store sets."""
    connection = await connect(address, name="bench")
    try:
        await connection.execute("SET statement_timeout = 0")
        yield connection
    finally:
        await connection.close()


async def settings_of(address: Address) -> str:
    """Return what a server is, and how it keeps its data."""
    async with connected(address) as connection:
        found = await connection.fetch("SELECT name, setting FROM pg_settings WHERE name = ANY ($1)", [*_SHOWN])
        version: str = await connection.fetchval("SHOW server_version")
    settings = {row["name"]: row["setting"] for row in found}
    return ", ".join([f"Postgres {version}", *(f"{name} {settings[name]}" for name in _SHOWN if name in settings)])


async def _drop_all(address: Address, prefix: str) -> None:
    async with connected(address) as connection:
        names = await connection.fetch("SELECT nspname::text FROM pg_namespace WHERE starts_with(nspname, $1)", prefix)
        for row in names:  # each by itself: a transaction can lock so many tables and functions only
            await connection.execute(in_schema("DROP SCHEMA {schema} CASCADE", row["nspname"]))
