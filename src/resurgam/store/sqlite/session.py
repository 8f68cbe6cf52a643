"""Run the named statements of `queries.sql` on a connection."""

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from resurgam.store.sqlite.statements import queries

Row: TypeAlias = Mapping[str, Any]


class Session:
    """A connection that runs named statements."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._queries = queries()

    def fetch(self, query: str, **parameters: object) -> Sequence[Row]:
        """Run a named statement and return its rows."""
        return self._connection.execute(self._queries[query], parameters).fetchall()

    def execute(self, query: str, **parameters: object) -> int:
        """Run a named statement and return how many rows it changed."""
        return self._connection.execute(self._queries[query], parameters).rowcount

    def execute_many(self, query: str, parameters: Sequence[Mapping[str, object]]) -> None:
        """Run a named statement once for each set of parameters."""
        self._connection.executemany(self._queries[query], parameters)
