"""One SQLite file: its connections, its one writer, and the errors it may raise.

Writes are grouped: whatever is waiting when the writer comes free goes into one transaction. A lone piece of work runs
where it stands, because a thread costs as much as the rows; several go to a thread, so that the loop is not held while
the disk is.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from resurgam.core.errors import StoreError
from resurgam.store.sql.queries import migrations, queries
from resurgam.store.sql.transactions import Row

T = TypeVar("T")

BUSY_TIMEOUT: Final = 5.0
"""Seconds to wait for another process that is writing."""

_MOMENT: Final = 0.02
_LEVELS: Final = ("OFF", "NORMAL", "FULL", "EXTRA")

_REMEDIES: Final = (
    ("file is not a database", "the file is not an SQLite database; give the path of another one"),
    ("malformed", "the file is damaged; restore it from a backup, or recover it with the sqlite3 shell"),
    ("readonly database", "the file, or its folder, may not be written; change the permissions"),
    ("unable to open", "the file cannot be opened; does its folder exist, and may it be written?"),
    ("database is locked", "another program holds the database; end its transaction"),
    ("disk is full", "the disk is full; make room, the work goes on by itself"),
    ("disk i/o error", "the disk does not answer as it should"),
)


class Session:
    """A connection that runs named statements."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._queries = queries()

    def all(self, query: str, **parameters: object) -> Sequence[Row]:
        """Run a named statement and return its rows."""
        return self._connection.execute(self._queries[query], parameters).fetchall()

    def do(self, query: str, **parameters: object) -> int:
        """Run a named statement and return how many rows it changed."""
        return self._connection.execute(self._queries[query], parameters).rowcount

    def many(self, query: str, parameters: Sequence[Mapping[str, object]]) -> None:
        """Run a named statement for each set of parameters."""
        self._connection.executemany(self._queries[query], parameters)


class Database:
    """An open file with one writing and one reading connection."""

    def __init__(self, path: Path, *, synchronous: str = "FULL") -> None:
        self.path = path
        self.synchronous = synchronous
        try:
            self._writing = _patiently(lambda: self._connect(synchronous))
            _migrate(self._writing, path)
            self._reading = _patiently(lambda: self._connect(synchronous))
        except sqlite3.Error as error:
            raise self.explain(error) from error
        self.writer = Session(self._writing)
        self.reader = Session(self._reading)

    def _connect(self, synchronous: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    def transact(self, work: Sequence[Callable[[Session], Any]]) -> list[Any]:
        """Do several pieces of work in one transaction."""
        try:
            self._writing.execute("BEGIN IMMEDIATE")
            try:
                results = [piece(self.writer) for piece in work]
                self._writing.execute("COMMIT")
            except BaseException:
                if self._writing.in_transaction:
                    self._writing.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise self.explain(error) from error
        return results

    def read(self, look: Callable[[Session], T]) -> T:
        """Look at one consistent state."""
        try:
            self._reading.execute("BEGIN")
            try:
                return look(self.reader)
            finally:
                self._reading.execute("COMMIT")
        except sqlite3.Error as error:
            raise self.explain(error) from error

    def version(self) -> int:
        """Return a number that changes when another connection has written."""
        [number] = self._reading.execute("PRAGMA data_version").fetchone()
        return int(number)

    def level(self) -> str:
        """Return the level at which commits are synced, as the open file has it."""
        [number] = self._writing.execute("PRAGMA synchronous").fetchone()
        return _LEVELS[number]

    def trace(self, writes: Callable[[str], None] | None, reads: Callable[[str], None] | None) -> None:
        """Tell of every statement of the writing and of the reading connection from now on; None ends it."""
        self._writing.set_trace_callback(writes)
        self._reading.set_trace_callback(reads)

    def explain(self, error: sqlite3.Error) -> StoreError:
        """Return the error of ours for one of SQLite's, with what to do about it."""
        text = str(error)
        remedy = next((remedy for sign, remedy in _REMEDIES if sign in text.lower()), "")
        return StoreError(f"{self.path}: {text}" + (f": {remedy}" if remedy else ""))

    def close(self) -> None:
        """Close both connections."""
        self._reading.close()
        self._writing.close()


def _patiently(connect: Callable[[], sqlite3.Connection]) -> sqlite3.Connection:
    """Connect, though another process may be making the same file at this very moment.

    Going over to WAL takes a lock that SQLite does not wait for, whatever its timeout.
    """
    for _ in range(round(BUSY_TIMEOUT / _MOMENT)):
        try:
            return connect()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            time.sleep(_MOMENT)
    return connect()


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the schema up to date; a file of a newer version is left alone."""
    steps = migrations()
    connection.execute("BEGIN IMMEDIATE")
    try:
        [version] = connection.execute("PRAGMA user_version").fetchone()
        if version > len(steps):
            raise StoreError(
                f"{path}: the file has schema version {version}, this Resurgam knows {len(steps)}; use a newer one"
            )
        for step in steps[version:]:
            for statement in _statements(step):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(steps)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _statements(script: str) -> list[str]:
    """Split a script; ``executescript`` would commit the transaction that it must be part of."""
    found, waiting = [], ""
    for line in script.splitlines(keepends=True):
        waiting += line
        if sqlite3.complete_statement(waiting):
            found.append(waiting)
            waiting = ""
    return found


class Writer:
    """Groups pieces of work into transactions, one at a time."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: list[tuple[Callable[[Session], Any], asyncio.Future[Any]]] = []
        self._busy = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="resurgam-writer")

    async def write(self, work: Callable[[Session], T]) -> T:
        """Do a piece of work in a transaction, together with whatever else is waiting."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((work, done))
        if not self._busy and len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._flush)
        return await done

    def close(self) -> None:
        """Wait for the thread to be done."""
        self._thread.shutdown()

    def _flush(self) -> None:
        if self._busy or not self._waiting:
            return
        group, self._waiting = self._waiting, []
        if len(group) == 1:
            self._settle(group, self._attempt(group))
            return
        self._busy = True
        running = asyncio.get_running_loop().run_in_executor(self._thread, self._attempt, group)
        running.add_done_callback(lambda ended: self._grouped(group, ended.result()))

    def _grouped(self, group: list[tuple[Callable[[Session], Any], asyncio.Future[Any]]], answers: list[Any]) -> None:
        self._busy = False
        self._settle(group, answers)
        self._flush()

    def _attempt(self, group: list[tuple[Callable[[Session], Any], asyncio.Future[Any]]]) -> list[Any]:
        """Return the result of each piece, or its exception: one that fails does not take the others with it."""
        try:
            return self._database.transact([work for work, _ in group])
        except Exception as error:  # noqa: BLE001 -- handed to whoever asked for the work
            if len(group) == 1:
                return [error]
            return [answer for piece in group for answer in self._attempt([piece])]

    def _settle(self, group: list[tuple[Callable[[Session], Any], asyncio.Future[Any]]], answers: list[Any]) -> None:
        for (_, done), answer in zip(group, answers, strict=True):
            if done.done():
                continue
            if isinstance(answer, Exception):
                done.set_exception(answer)
            else:
                done.set_result(answer)
