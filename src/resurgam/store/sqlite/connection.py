"""Open a SQLite file: its two connections, their pragmas, and the errors they raise."""

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar, TypeVarTuple

from resurgam.core.errors import StoreError, WriteRejected
from resurgam.store.sqlite.log_size import CHECK_EVERY, LogCopier, cut_log, limit_log, log_of
from resurgam.store.sqlite.migrate import check_ours, migrate
from resurgam.store.sqlite.session import Row, Session

T = TypeVar("T")
Given = TypeVarTuple("Given")

BUSY_TIMEOUT: Final = 5.0
"""Seconds to wait for another process that is writing."""

_PAGE: Final = 2048
"""Bytes of a page of a new file; others keep theirs.

A commit writes a few rows, each to another page, and all of these pages go into the log with their checksums. With SQLite's
4096 bytes it writes almost twice as much.
"""

_RETRY_OPEN: Final = 0.02
"""Seconds between two attempts to open a file that another process is creating."""

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
"""Primary codes of errors that the written values cause, so that writing them again fails again."""

_UNBOUND: Final = (OverflowError, UnicodeEncodeError)
"""Raised by Python's own binding: an integer beyond 64 bits, a string beyond 2 GB, a lone surrogate."""


class Locked(StoreError):
    """Another connection is writing."""


class Database:
    """An open file with one writing and one reading connection."""

    def __init__(self, path: Path, *, synchronous: str = "FULL") -> None:
        self.path = path
        self._name = str(path)
        self.synchronous = synchronous
        # SQLite keeps the last error by connection: what one thread does in between would hide the other's.
        self._one_thread = threading.Lock()
        self.lost = False  # whether the file was gone at the last check
        try:
            _check_writable(path)
            _create_private(path)
            self._writing = _retry_while_locked(lambda: self._connect(synchronous))
            migrate(self._writing, path)
            self._reading = _retry_while_locked(lambda: self._connect(synchronous))
        except sqlite3.Error as error:
            raise self.explain(error) from error
        self._commits = 0
        self._check_at = CHECK_EVERY
        self._log_copier = LogCopier(self._writing, path)
        self._file = _identity(path)
        self._inode = None if self._file is None else self._file[1]
        self._log = Path(log_of(path))
        self._log_file = _identity(self._log)
        self._writing.execute("PRAGMA busy_timeout = 0")
        self.writer = Session(self._writing)
        self._hot = self.writer.hot
        self.reader = Session(self._reading)

    def _connect(self, synchronous: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        connection.row_factory = sqlite3.Row
        check_ours(connection, self.path)
        connection.execute(f"PRAGMA page_size = {_PAGE}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        limit_log(connection)
        return connection

    def transact(self, work: Callable[[Session, *Given], T], *given: *Given) -> T:
        """Write in one transaction; raise `Locked` if another connection is writing.

        SQLite's own wait for it would block the event loop.
        """
        if self.lost:
            self.check_files()
        hot = self._hot
        with self._one_thread:
            try:
                try:
                    hot.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError as error:
                    if "locked" not in str(error):
                        raise
                    raise Locked(str(self.explain(error))) from error
                try:
                    result = work(self.writer, *given)
                    hot.execute("COMMIT")
                except BaseException:
                    if self._writing.in_transaction:
                        hot.execute("ROLLBACK")
                    raise
            except (sqlite3.Error, *_UNBOUND) as error:
                raise self.explain(error) from error
            self._commits += 1
            if self._commits == self._check_at:
                self._check_log()
        # After the commit: an acknowledged write must be in the file that the path names.
        try:
            found = os.stat(self._name)  # noqa: PTH116 -- a third of Path.stat, once in every group of commits
            if found.st_ino != self._inode:
                self.check_in_place()
        except OSError:
            self.check_in_place()
        return result

    def _check_log(self) -> None:
        self._check_at = CHECK_EVERY
        with contextlib.suppress(sqlite3.Error):  # the commit is durable; the log only stays longer
            self._check_at = self._log_copier.note_commits(self._commits)
        self._commits = 0

    def check_in_place(self) -> None:
        """Raise `StoreError` if the path no longer names the open file: writes to it would be lost."""
        found = _identity(self.path)
        self.lost = found != self._file
        if self.lost:
            raise StoreError(_lost(self.path, deleted=found is None))

    def check_files(self) -> None:
        """Raise `StoreError` if the path no longer names the open file, or its log was deleted or replaced."""
        self.check_in_place()
        found = _identity(self._log)
        if self._log_file is None:
            self._log_file = found
        elif found != self._log_file:
            self.lost = True
            raise StoreError(_lost(self._log, deleted=found is None))

    def fetch(self, query: str, **parameters: object) -> Sequence[Row]:
        """Run one statement that only reads, and return its rows."""
        try:
            return self.reader.fetch(query, **parameters)
        except sqlite3.Error as error:
            raise self.explain(error) from error

    def read(self, look: Callable[[Session], T]) -> T:
        """Return what *look* finds in one consistent state."""
        try:
            self._reading.execute("BEGIN")
            try:
                return look(self.reader)
            finally:
                self._reading.execute("COMMIT")
        except sqlite3.Error as error:
            raise self.explain(error) from error

    def version(self) -> int:
        """Return a number that changes when a connection other than this file's own has written."""
        try:
            with self._one_thread:
                [number] = self._writing.execute("PRAGMA data_version").fetchone()
        except sqlite3.Error as error:
            raise self.explain(error) from error
        return int(number)

    def level(self) -> str:
        """Return the level of ``synchronous`` that the open file has."""
        [number] = self._writing.execute("PRAGMA synchronous").fetchone()
        return _LEVELS[number]

    def trace(self, writes: Callable[[str], None] | None, reads: Callable[[str], None] | None) -> None:
        """Call *writes* and *reads* with every statement of the writing and the reading connection; None ends it."""
        self._writing.set_trace_callback(writes)
        self._reading.set_trace_callback(reads)

    def explain(self, error: Exception) -> StoreError:
        """Return the `StoreError` for an error of SQLite, with its remedy."""
        return explain(self.path, error)

    def close(self) -> None:
        """Close both connections and cut the log, as far as other connections allow.

        SQLite does not delete the log of a file that was replaced: it would be the replacement's.
        """
        for session in (self.reader, self.writer):
            session.hot.close()  # with a statement that it keeps, the file would stay open
        self._reading.close()
        with contextlib.suppress(sqlite3.Error):  # as above
            cut_log(self._writing)
        self._writing.close()


def explain(path: Path, error: Exception) -> StoreError:
    """Return the `StoreError` for an error of SQLite, or of its binding, about this file, with its remedy."""
    text = str(error)
    remedy = next((remedy for sign, remedy in _REMEDIES if sign in text.lower()), "")
    # The low byte is the primary code; errors that SQLite itself did not raise have none.
    permanent = getattr(error, "sqlite_errorcode", 0) & 0xFF in _PERMANENT or isinstance(error, _UNBOUND)
    return (WriteRejected if permanent else StoreError)(f"{path}: {text}" + (f": {remedy}" if remedy else ""))


def _check_writable(path: Path) -> None:
    """Refuse a read-only file before SQLite opens it and leaves a read-only -shm beside it."""
    if path.exists() and not os.access(path, os.W_OK):
        raise sqlite3.OperationalError("attempt to write a readonly database")


def _create_private(path: Path) -> None:
    """Create a missing file with mode 0600: it holds payloads and the secret. SQLite gives its log the same mode.

    An existing file must not be opened here: closing it would drop the locks that this process holds on it.
    """
    with contextlib.suppress(OSError):  # it exists, or SQLite says better why it cannot be made
        os.close(os.open(os.path.realpath(path), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _identity(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of a file; None if there is none."""
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


def _retry_while_locked(connect: Callable[[], sqlite3.Connection]) -> sqlite3.Connection:
    """Connect, even if another process is creating the same file at this moment.

    The change to WAL takes a lock for which SQLite does not wait, whatever its timeout.
    """
    for _ in range(round(BUSY_TIMEOUT / _RETRY_OPEN)):
        try:
            return connect()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            time.sleep(_RETRY_OPEN)
    return connect()
