"""Keep the write-ahead log small.

SQLite would copy the log into the database by itself after some megabytes, but without the write lock: while several
processes write, one of them has always added to the log before all of it is copied, so it is not begun anew, and every
further commit copies and syncs again. So that is switched off. Each store counts its commits, copies the log while it
holds the write lock, and thereby has the next commit overwrite the log from its beginning. That is cheaper than a log
that is cut and grows again: a sync of a file that has grown also writes its size.
"""

import os
import sqlite3
from pathlib import Path
from typing import Final

LOG_LIMIT: Final = 16 * 2**20
"""Bytes. A longer log is cut after a few commits."""

CHECK_EVERY: Final = 16
"""Commits between two checks of the log."""

_RETRY: Final = 2
"""Commits after which copying is tried again, because another connection was using the log."""

_HEADER: Final = 32
"""Bytes of the header of a log, with a number that counts its beginnings."""

_LENGTH: Final = 4 * 2**20
"""Bytes of the log, about, at which it is copied, as SQLite does by default."""


class LogCopier:
    """Copies the log of a file into its database when it has become long."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._name = log_of(path)
        self._begin = _begin_of(self._name)
        self._commits = 0
        self._copy_at = CHECK_EVERY
        [page] = connection.execute("PRAGMA page_size").fetchone()
        self._pages = _LENGTH // page

    def note_commits(self, commits: int) -> int:
        """Count commits and copy the log if that is due; return after how many more commits to call again."""
        self._commits += commits
        too_long = log_size(self._name) > LOG_LIMIT
        if not too_long and (self._is_begun_anew() or self._commits < self._copy_at):
            return CHECK_EVERY
        busy, pages, _ = _copy(self._connection, "TRUNCATE" if too_long else "RESTART")
        if busy:
            return _RETRY
        # Other stores have added to these pages too, so it is the share of this one that is counted.
        self._copy_at = max(CHECK_EVERY, self._commits * self._pages // max(pages, 1))
        self._commits = 0
        return CHECK_EVERY

    def _is_begun_anew(self) -> bool:
        """Whether the log was begun anew since the last call; if so, the commits are counted from now on."""
        begin = _begin_of(self._name)
        if begin == self._begin:
            return False
        self._begin = begin
        self._commits = 0
        return True


def log_of(path: Path) -> str:
    """Return the path of the write-ahead log of a database."""
    return f"{os.path.realpath(path)}-wal"


def log_size(log: str) -> int:
    """Return the size of a log in bytes; 0 if there is none."""
    try:
        return os.stat(log).st_size  # noqa: PTH116 -- a third of Path.stat, and it is called between commits
    except FileNotFoundError:
        return 0


def _begin_of(log: str) -> bytes:
    """Return the beginning of a log, which is another one each time that it is begun anew."""
    try:
        with open(log, "rb") as file:  # noqa: PTH123 -- as above
            return file.read(_HEADER)
    except OSError:
        return b""


def limit_log(connection: sqlite3.Connection) -> None:
    """Have SQLite cut the log to the limit whenever it begins it anew, and not copy it by itself."""
    connection.execute(f"PRAGMA journal_size_limit = {LOG_LIMIT}")
    connection.execute("PRAGMA wal_autocheckpoint = 0")


def cut_log(connection: sqlite3.Connection) -> bool:
    """Copy the log into the database and truncate it; return False if another connection is reading or writing.

    As much as possible is copied in any case.
    """
    [busy, *_] = _copy(connection, "TRUNCATE")
    return not busy


def _copy(connection: sqlite3.Connection, mode: str) -> tuple[bool, int, int]:
    """Copy the log into the database; return whether it was in use, its pages, and those that are copied."""
    busy, pages, copied = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
    return bool(busy), pages, copied
