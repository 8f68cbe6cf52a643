"""Run the named statements of `queries.sql` on a connection."""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias, TypeVar

from resurgam.store.sqlite.statements import queries

Row: TypeAlias = sqlite3.Row

T = TypeVar("T")


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

    def insert(self, query: str, **parameters: object) -> int:
        """Run a named statement that inserts one row, and return its number."""
        inserted = self._connection.execute(self._queries[query], parameters).lastrowid
        assert inserted is not None
        return inserted

    def execute_many(self, query: str, parameters: Sequence[Mapping[str, object]]) -> None:
        """Run a named statement once for each set of parameters."""
        self._connection.executemany(self._queries[query], parameters)


class Snapshots(Protocol):
    """A file that can be read in a consistent state."""

    def read(self, look: Callable[[Session], T]) -> T:
        """Return what *look* finds in one consistent state."""
        ...

    def fetch(self, query: str, **parameters: object) -> Sequence[Row]:
        """Run one named statement, which needs no transaction around it, and return its rows."""
        ...

    def close(self) -> None:
        """Close what was opened for reading."""
        ...
