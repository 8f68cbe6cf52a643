"""Load the named statements of `queries.sql` and the migrations."""

import re
from functools import cache
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parent
_NAMED = re.compile(r"^-- (\w+|\{\w+\}): (.+)$", re.MULTILINE)

_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)


@cache
def queries() -> dict[str, str]:
    """Return every statement by name; shared parts, whose names are in braces, are put where they are named."""
    text = (_FOLDER / "queries.sql").read_text("utf-8")
    parts = _NAMED.split(text)[1:]
    found = {name: sql.strip() for name, _, sql in zip(parts[::3], parts[1::3], parts[2::3], strict=True)}
    for shared in [name for name in found if name.startswith("{")]:
        part = _COMMENT.sub("", found.pop(shared))
        found = {name: sql.replace(shared, part) for name, sql in found.items()}
    return found


@cache
def for_rows(query: str, most: int) -> list[str]:
    """Return a statement that inserts a row, changed to insert 0 rows, one, two and so on up to *most*.

    A row of sixteen costs half of what it costs alone: what SQLite does once for a statement is done once for all.
    """
    begin, values, row = queries()[query].rstrip(";").rpartition("VALUES ")
    return [begin + values + ", ".join([row] * number) for number in range(most + 1)]


@cache
def migrations() -> list[str]:
    """Return the scripts that bring a database to the current schema, in order."""
    return [step.read_text("utf-8") for step in sorted((_FOLDER / "migrations").glob("*.sql"))]
