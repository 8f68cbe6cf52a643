"""Bring a schema up to date: numbered migrations, each run once, by one of any number of processes.

The table ``meta`` says how far a schema is (``version``, the number of its last migration) and which versions of Resurgam
may still use it (``oldest``, the number of migrations that they must know). A migration that older versions can live with
says so in a line ``-- oldest: N``; without one, it shuts out all versions that do not know it.
"""

import functools
import re
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

import msgspec

from resurgam.store.postgres.functions import in_schema

_FOLDER: Final = Path(__file__).parent / "migrations"
_OLDEST: Final = re.compile(r"^-- oldest: (\d+)$", re.MULTILINE)


class Meta(msgspec.Struct, frozen=True):
    """What a schema says of itself."""

    version: int
    oldest: int
    id: str


@functools.cache
def migrations() -> tuple[str, ...]:
    """Return the migrations of this version, in their order."""
    return tuple(file.read_text() for file in sorted(_FOLDER.glob("*.sql")))


async def read_meta(connection: Any, schema: str) -> Meta | None:
    """Return what a schema says of itself; None if it has no migration yet."""
    rows = await connection.fetch(in_schema("SELECT version, oldest, id FROM {schema}.meta", schema))
    return Meta(**dict(rows[0])) if rows else None


async def migrate(connection: Any, schema: str, meta: Meta | None, steps: tuple[str, ...]) -> None:
    """Run the migrations that are missing, in the transaction and under the lock of the caller."""
    version, oldest = (0, 0) if meta is None else (meta.version, meta.oldest)
    for number, step in enumerate(steps[version:], version + 1):
        await connection.execute(in_schema(step, schema))
        found = _OLDEST.search(step)
        oldest = max(oldest, int(found[1]) if found else number)
    text = "INSERT INTO {schema}.meta (version, oldest, id) VALUES ($1, $2, $3)"
    if meta is not None:
        text = "UPDATE {schema}.meta SET version = $1, oldest = $2 WHERE id = $3"
    identity = token_hex(8) if meta is None else meta.id
    await connection.execute(in_schema(text, schema), max(version, len(steps)), oldest, identity)
