"""Keep the write-ahead log small.

SQLite checkpoints by itself after some megabytes, but only passively: it never waits. While several processes write,
one of them is always reading, so the log is not restarted and grows, and it is never cut. So each store checks its size
from time to time, and past `LOG_LIMIT` copies all of it into the database and cuts it.
"""

import os
import sqlite3
from pathlib import Path
from typing import Final

LOG_LIMIT: Final = 16 * 2**20
"""Bytes. A longer log is cut after a few commits."""

CHECK_EVERY: Final = 16
"""Commits between two checks of the size."""


def log_of(path: Path) -> str:
    """Return the path of the write-ahead log of a database."""
    return f"{os.path.realpath(path)}-wal"


def log_size(log: str) -> int:
    """Return the size of a log in bytes; 0 if there is none."""
    try:
        return os.stat(log).st_size  # noqa: PTH116 -- a third of Path.stat, and it is called between commits
    except FileNotFoundError:
        return 0


def limit_log(connection: sqlite3.Connection) -> None:
    """Have SQLite cut the log to the limit whenever it restarts it."""
    connection.execute(f"PRAGMA journal_size_limit = {LOG_LIMIT}")


def cut_log(connection: sqlite3.Connection) -> bool:
    """Copy the log into the database and truncate it; return False if another connection is reading or writing.

    As much as possible is copied in any case.
    """
    [busy, *_] = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy
