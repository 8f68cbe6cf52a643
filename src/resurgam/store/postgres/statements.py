"""Load the named statements of `reads.sql`."""

import functools
import re
from pathlib import Path
from typing import Final

from resurgam.store.postgres.functions import in_schema

_NAMED: Final = re.compile(r"^-- (\w+|\{\w+\}): (.+)$", re.MULTILINE)
_COMMENT: Final = re.compile(r"^--.*\n", re.MULTILINE)


@functools.cache
def statements() -> dict[str, str]:
    """Return every statement by its name; shared parts, whose names are in braces, are put where they are named."""
    text = (Path(__file__).parent / "reads.sql").read_text("utf-8")
    pieces = _NAMED.split(text)[1:]
    found = {
        name: _COMMENT.sub("", sql).strip()
        for name, _, sql in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True)
    }
    for shared in [name for name in found if name.startswith("{")]:
        part = found.pop(shared)
        found = {name: sql.replace(shared, part) for name, sql in found.items()}
    return found


@functools.lru_cache(maxsize=1000)
def statement(name: str, schema: str, **parts: str) -> str:
    """Return a statement for the tables of a schema; *parts* are put where their names stand in braces."""
    text = statements()[name]
    for part, value in parts.items():
        text = text.replace(f"{{{part}}}", value)
    return in_schema(text, schema)
