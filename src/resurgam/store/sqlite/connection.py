"""One SQLite file: its connections, its one writer, and the errors it may raise.

Writes are grouped: whatever is waiting at one turn of the loop goes into one transaction. It is written where it stands:
every statement in a thread would have to win Python's lock back from the loop, which costs more than the disk does.
Only if another process is writing at that moment, or the group must be taken apart, is it handed to a thread, which waits
for its turn.
"""

import asyncio
import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Generic, TypeAlias, TypeVar

from resurgam.core.errors import StoreError, WriteRejected
from resurgam.store.sqlite.log_size import LOG_LIMIT, LOOK_EVERY, cut_log, limit_log, log_of, log_size
from resurgam.store.sqlite.session import Row
from resurgam.store.sqlite.statements import migrations, queries

T = TypeVar("T")
W = TypeVar("W")

_Piece: TypeAlias = tuple[Callable[[W], Any], asyncio.Future[Any]]
_Answers: TypeAlias = tuple[list[W], list[Any]]

BUSY_TIMEOUT: Final = 5.0
"""Seconds to wait for another process that is writing."""

_MOMENT: Final = 0.02
_PATIENT_MOMENT: Final = 0.001
_RETRY_AFTER: Final = 2
"""Commits after which a log that could not be cut is tried again."""

_APPLICATION: Final = int.from_bytes(b"resu", "big")
"""What is written into the head of every file of ours, so that it is told from other programs' (`file` shows it too)."""

_LEVELS: Final = ("OFF", "NORMAL", "FULL", "EXTRA")

_REMEDIES: Final = (
    ("file is not a database", "the file is not an SQLite database; give the path of another one"),
    ("malformed", "the file is damaged; restore it from a backup, or recover it with the sqlite3 shell"),
    ("readonly database", "the file, or its folder, may not be written; change the permissions"),
    ("unable to open", "the file cannot be opened; does its folder exist, and may it be written?"),
    ("database is locked", "another program holds the database; end its transaction"),
    ("disk is full", "the disk is full; make room, the work goes on by itself"),
    ("disk i/o error", "the disk does not answer as it should"),
    ("too big", "a row would be larger than SQLite takes; keep large values elsewhere and pass where they are"),
)

_PERMANENT: Final = frozenset(
    {sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_RANGE}
)
"""Primary codes of errors that lie in what was to be written, so that writing it again fails again."""


class Locked(StoreError):
    """Somebody else is writing."""


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
        self._name = str(path)
        self.synchronous = synchronous
        # SQLite keeps the last error by connection: what one thread does in between would hide the other's.
        self._one_thread = threading.Lock()
        self.lost = False  # whether the file was gone when it was last looked for
        try:
            _check_writable(path)
            _create_private(path)
            self._writing = _patiently(lambda: self._connect(synchronous))
            _migrate(self._writing, path)
            self._reading = _patiently(lambda: self._connect(synchronous))
        except sqlite3.Error as error:
            raise self.explain(error) from error
        self._commits = 0
        self._log_name = log_of(path)
        self._file = _identity(path)
        self._inode = None if self._file is None else self._file[1]
        self._log = Path(self._log_name)
        self._log_file = _identity(self._log)
        self._writing.execute("PRAGMA busy_timeout = 0")
        self.writer = Session(self._writing)
        self.reader = Session(self._reading)

    def _connect(self, synchronous: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        connection.row_factory = sqlite3.Row
        check_ours(connection, self.path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        limit_log(connection)
        return connection

    def transact(self, work: Callable[[Session], T]) -> T:
        """Write in one transaction; `Locked` if somebody else is writing."""
        if self.lost:
            self.check_files()
        with self._one_thread:
            try:
                self._begin()
                try:
                    result = work(self.writer)
                    self._writing.execute("COMMIT")
                except BaseException:
                    if self._writing.in_transaction:
                        self._writing.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise self.explain(error) from error
            except (OverflowError, UnicodeEncodeError) as error:
                # Raised by Python's own binding: an integer beyond 64 bits, a string beyond 2 GB, a lone surrogate.
                raise WriteRejected(f"{self.path}: {error}") from error
            self._commits += 1
            if self._commits % LOOK_EVERY == 0:
                self._bound_log()
        # After the commit: what is acknowledged was written to the file that the path leads to.
        try:
            found = os.stat(self._name)  # noqa: PTH116 -- a third of Path.stat, once in every group of commits
            if found.st_ino != self._inode:
                self.check_in_place()
        except OSError:
            self.check_in_place()
        return result

    def _bound_log(self) -> None:
        """Cut the log if it is too long; while others are at it, try again after the next commits."""
        if log_size(self._log_name) <= LOG_LIMIT:
            return
        with contextlib.suppress(sqlite3.Error):  # what was committed is durable; the log only stays longer
            if not cut_log(self._writing):
                self._commits = LOOK_EVERY - _RETRY_AFTER

    def check_in_place(self) -> None:
        """Raise `StoreError` if the path no longer leads to the open file: what is written to it would be lost."""
        found = _identity(self.path)
        self.lost = found != self._file
        if self.lost:
            raise StoreError(_lost(self.path, deleted=found is None))

    def check_files(self) -> None:
        """Do the same for the file and its log, which may have been deleted alone."""
        self.check_in_place()
        found = _identity(self._log)
        if self._log_file is None:
            self._log_file = found
        elif found != self._log_file:
            self.lost = True
            raise StoreError(_lost(self._log, deleted=found is None))

    def _begin(self) -> None:
        """Take the right to write, or leave it: SQLite's own way of waiting would hold the loop."""
        try:
            self._writing.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise Locked(str(self.explain(error))) from error
            raise

    def glance(self, query: str, **parameters: object) -> Sequence[Row]:
        """Run one statement that only looks."""
        try:
            return self.reader.all(query, **parameters)
        except sqlite3.Error as error:
            raise self.explain(error) from error

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
        """Return a number that changes when another connection has written: one that is not this store's own."""
        try:
            with self._one_thread:
                [number] = self._writing.execute("PRAGMA data_version").fetchone()
        except sqlite3.Error as error:
            raise self.explain(error) from error
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
        return explain(self.path, error)

    def close(self) -> None:
        """Close both connections, and leave as short a log as others allow.

        SQLite deletes no log by its path if the file was replaced: it would be that of the replacement.
        """
        self._reading.close()
        with contextlib.suppress(sqlite3.Error):  # as above
            cut_log(self._writing)
        self._writing.close()


def explain(path: Path, error: sqlite3.Error) -> StoreError:
    """Return the error of ours for one of SQLite's about this file, with what to do about it."""
    text = str(error)
    remedy = next((remedy for sign, remedy in _REMEDIES if sign in text.lower()), "")
    # The low byte is the primary code; errors that SQLite itself did not raise have none.
    permanent = getattr(error, "sqlite_errorcode", 0) & 0xFF in _PERMANENT
    return (WriteRejected if permanent else StoreError)(f"{path}: {text}" + (f": {remedy}" if remedy else ""))


def _check_writable(path: Path) -> None:
    """Refuse a read-only file before SQLite has seen it: it would leave a read-only -shm beside it, for ever in the way."""
    if path.exists() and not os.access(path, os.W_OK):
        raise sqlite3.OperationalError("attempt to write a readonly database")


def _create_private(path: Path) -> None:
    """Create a missing file for its owner alone: it holds payloads and the secret. SQLite gives its log the same mode.

    An existing file is never opened here: closing it would drop the locks that this process holds on it.
    """
    with contextlib.suppress(OSError):  # it exists, or SQLite says better why it cannot be made
        os.close(os.open(os.path.realpath(path), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what tells a file from every other on this machine; None if there is none."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def _lost(path: Path, *, deleted: bool) -> str:
    what = "deleted" if deleted else "replaced by another file"
    return (
        f"{path}: the file was {what} while this store had it open, so nothing more is read from it or written to it; "
        "move the original back, or end this process and start it again on the file that should be used"
    )


def check_ours(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse the database of another program, before anything in it is changed."""
    # In this order: whoever is making the file at this moment commits its tables and its mark together.
    [tables] = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    [owner] = connection.execute("PRAGMA application_id").fetchone()
    if tables and owner != _APPLICATION:
        raise StoreError(f"{path}: this is the database of another program; give the path of a file of its own")


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
        connection.execute(f"PRAGMA application_id = {_APPLICATION}")
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


class Writer(Generic[W]):
    """Groups pieces of work into transactions, one at a time.

    *begin* makes what the pieces of one transaction work on, and *changed* is told of it once it is durable.
    """

    def __init__(self, database: Database, begin: Callable[[Session], W], changed: Callable[[W], None]) -> None:
        self._database = database
        self._begin = begin
        self._changed = changed
        self._waiting: list[_Piece[W]] = []
        self._alone = True
        self._running: asyncio.Future[_Answers[W]] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="resurgam-writer")

    def write(self, work: Callable[[W], T]) -> asyncio.Future[T]:
        """Do a piece of work in a transaction, together with whatever else is waiting.

        If nobody else has had anything to write lately it is done at once; otherwise company is waited for until the
        next turn of the loop.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._waiting.append((work, done))
        if self._running is None and len(self._waiting) == 1:
            if self._alone:
                self._alone = False
                loop.call_soon(self._look_around)
                self._flush()
            else:
                loop.call_soon(self._flush_group)
        return done

    async def close(self) -> None:
        """Write what still waits, and let the thread go."""
        self._flush()
        while self._running is not None:
            await asyncio.wait([self._running])
        self._thread.shutdown()

    def _look_around(self) -> None:
        self._alone = not self._waiting

    def _flush_group(self) -> None:
        self._alone = len(self._waiting) == 1
        self._flush()

    def _flush(self) -> None:
        """Write what waits, here and now if nobody else is writing; otherwise a thread waits for its turn."""
        if self._running is not None or not self._waiting:
            return
        group, self._waiting = self._waiting, []
        try:
            answers = self._transact(group)
        except Exception as error:  # noqa: BLE001 -- handed to whoever asked for the work
            if isinstance(error, Locked) or len(group) > 1:
                self._hand_over(group)
                return
            answers = [], [error]
        self._settle(group, answers)

    def _hand_over(self, group: list[_Piece[W]]) -> None:
        deadline = time.monotonic() + BUSY_TIMEOUT
        self._running = asyncio.get_running_loop().run_in_executor(self._thread, self._attempt, group, deadline)
        self._running.add_done_callback(lambda ended: self._written(group, ended))

    def _written(self, group: list[_Piece[W]], ended: asyncio.Future[_Answers[W]]) -> None:
        self._running = None
        self._settle(group, ended.result())
        self._flush()

    # Called by the thread.

    def _attempt(self, group: list[_Piece[W]], deadline: float) -> _Answers[W]:
        """Return the result of each piece, or its exception: one that fails does not take the others with it."""
        try:
            return self._wait_and_transact(group, deadline)
        except Exception as error:  # noqa: BLE001 -- as above
            if isinstance(error, Locked) or len(group) == 1:
                return [], [error] * len(group)
            alone = [self._attempt([piece], deadline) for piece in group]
            return [done for dones, _ in alone for done in dones], [
                answer for _, answers in alone for answer in answers
            ]

    def _wait_and_transact(self, group: list[_Piece[W]], deadline: float) -> _Answers[W]:
        while True:
            try:
                return self._transact(group)
            except Locked:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_PATIENT_MOMENT)

    # Called by both.

    def _transact(self, group: list[_Piece[W]]) -> _Answers[W]:
        return self._database.transact(lambda session: self._work(session, group))

    def _work(self, session: Session, group: list[_Piece[W]]) -> _Answers[W]:
        begun = self._begin(session)
        return [begun], [work(begun) for work, _ in group]

    def _settle(self, group: list[_Piece[W]], answers: _Answers[W]) -> None:
        for begun in answers[0]:
            self._changed(begun)
        for (_, done), answer in zip(group, answers[1], strict=True):
            if done.done():
                continue
            if isinstance(answer, Exception):
                done.set_exception(answer)
            else:
                done.set_result(answer)
