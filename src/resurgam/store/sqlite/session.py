"""Run the named statements of `queries.sql` on a connection."""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Final, Protocol, TypeAlias, TypeVar

from resurgam.store.sqlite.statements import for_rows, queries

Row: TypeAlias = sqlite3.Row

T = TypeVar("T")

_BLOCK: Final = 16
"""Rows that one statement inserts at most."""

_COLUMNS: Final = 3
"""Columns of an entry of a log."""


class Session:
    """A connection that runs named statements."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._queries = queries()
        self._append = for_rows("append_event", _BLOCK)
        self._schedule = for_rows("schedule_activity", _BLOCK)
        self._entries: list[object] = []
        self._rows: dict[str, list[tuple[object, ...]]] = {}
        # For what is run in every step: a cursor of its own is not made again for each statement, and its rows are tuples.
        self.hot = connection.cursor()
        self.hot.row_factory = None

    def fetch(self, query: str, **parameters: object) -> Sequence[Row]:
        """Run a named statement and return its rows."""
        if self._entries or self._rows:
            self.write_rows()
        return self._connection.execute(self._queries[query], parameters).fetchall()

    def select(self, statement: str, parameters: Mapping[str, object]) -> Sequence[Row]:
        """Run a statement that was built for a query and return its rows."""
        if self._entries or self._rows:
            self.write_rows()
        return self._connection.execute(statement, parameters).fetchall()

    def execute(self, query: str, **parameters: object) -> int:
        """Run a named statement and return how many rows it changed."""
        if self._entries or self._rows:
            self.write_rows()
        return self._connection.execute(self._queries[query], parameters).rowcount

    def insert(self, query: str, **parameters: object) -> int:
        """Run a named statement that inserts one row, and return its number."""
        if self._entries or self._rows:
            self.write_rows()
        inserted = self._connection.execute(self._queries[query], parameters).lastrowid
        assert inserted is not None
        return inserted

    def execute_many(self, query: str, parameters: Sequence[Mapping[str, object]]) -> None:
        """Run a named statement once for each set of parameters."""
        if self._entries or self._rows:
            self.write_rows()
        self._connection.executemany(self._queries[query], parameters)

    # With parameters by position, for the statements of every step: a dictionary by name costs more than the statement.

    def append(self, entries: Sequence[object]) -> None:
        """Have entries of logs inserted before the next other statement, given as `history.encode_log` returns them."""
        self._entries += entries

    def put_off(self, query: str, rows: Sequence[tuple[object, ...]]) -> None:
        """Have a named statement run for these rows before the next other one: many commits then share one run of it."""
        if rows:
            self._rows.setdefault(query, []).extend(rows)

    def write_rows(self) -> None:
        """Write what was put off."""
        entries = self._entries
        if entries:
            self._entries = []
            if len(entries) <= _COLUMNS * _BLOCK:
                self.hot.execute(self._append[len(entries) // _COLUMNS], entries)
            else:
                for first in range(0, len(entries), _COLUMNS * _BLOCK):
                    block = entries[first : first + _COLUMNS * _BLOCK]
                    self.hot.execute(self._append[len(block) // _COLUMNS], block)
        if self._rows:
            put_off, self._rows = self._rows, {}
            for query, rows in put_off.items():
                self._write(query, rows)

    def _write(self, query: str, rows: Sequence[tuple[object, ...]]) -> None:
        if query != "schedule_activity":
            self.hot.executemany(self._queries[query], rows)
            return
        for first in range(0, len(rows), _BLOCK):
            block = rows[first : first + _BLOCK]
            self.hot.execute(self._schedule[len(block)], list(chain.from_iterable(block)))

    def forget_rows(self) -> None:
        """Forget what was put off in a transaction that has failed."""
        self._entries, self._rows = [], {}

    def run(self, query: str, parameters: tuple[object, ...]) -> int:
        """Run a named statement before what was put off, which does not concern it; return how many rows it changed."""
        return self.hot.execute(self._queries[query], parameters).rowcount

    def finds(self, query: str, parameters: tuple[object, ...]) -> bool:
        """Whether a named statement, run before what was put off, returns a row."""
        return self.hot.execute(self._queries[query], parameters).fetchone() is not None


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
