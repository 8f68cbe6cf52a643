"""Load the named statements of `queries.sql` and the migrations."""

import re
from functools import cache
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parent
_NAMED = re.compile(r"^-- (\w+): (.+)$", re.MULTILINE)


@cache
def queries() -> dict[str, str]:
    """Return every statement by name."""
    text = (_FOLDER / "queries.sql").read_text("utf-8")
    parts = _NAMED.split(text)[1:]
    return {name: sql.strip() for name, _, sql in zip(parts[::3], parts[1::3], parts[2::3], strict=True)}


@cache
def migrations() -> list[str]:
    """Return the scripts that bring a database to the current schema, in order."""
    return [step.read_text("utf-8") for step in sorted((_FOLDER / "migrations").glob("*.sql"))]
