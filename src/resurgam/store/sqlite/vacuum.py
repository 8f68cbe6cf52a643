"""Return the free pages of a SQLite file to the file system."""

import sqlite3
import time
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from resurgam.core.errors import StoreError
from resurgam.store.sqlite.connection import BUSY_TIMEOUT, explain
from resurgam.store.sqlite.log_size import cut_log, log_of, log_size
from resurgam.store.sqlite.migrate import check_ours

_RETRY: Final = 0.01
"""Seconds between two attempts to cut the log."""


class Vacuumed(msgspec.Struct, frozen=True):
    """The size of a file with its log, in bytes, *before* and *after*."""

    before: int
    after: int


def vacuum(path: Path) -> Vacuumed:
    """Rewrite the file without its free pages.

    Engines may have the file open: they can read meanwhile, and their writes wait. Needs free disk space of the file's
    size.
    """
    try:
        existing = f"file:{quote(str(path.absolute()))}?mode=rw"
        connection = sqlite3.connect(existing, uri=True, timeout=BUSY_TIMEOUT, isolation_level=None)
    except sqlite3.Error as error:
        raise explain(path, error) from error
    try:
        check_ours(connection, path)
        before = _size(path)
        connection.execute("VACUUM")
        if not _cut_with_retries(connection):
            raise StoreError(
                f"{path}: another process keeps reading it, so the file could not be shortened yet; try again when the "
                "workers are idle, or stop them"
            )
        return Vacuumed(before, _size(path))
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise StoreError(
                f"{path}: another process writes to it all the time; try again when the workers are idle, or stop them"
            ) from error
        raise explain(path, error) from error
    except sqlite3.Error as error:
        raise explain(path, error) from error
    finally:
        connection.close()


def _cut_with_retries(connection: sqlite3.Connection) -> bool:
    """Cut the log; SQLite does not wait for a checkpoint of another connection, whatever its timeout."""
    deadline = time.monotonic() + BUSY_TIMEOUT
    while not cut_log(connection):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_RETRY)
    return True


def _size(path: Path) -> int:
    return path.stat().st_size + log_size(log_of(path))
