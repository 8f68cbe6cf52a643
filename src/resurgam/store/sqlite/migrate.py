"""Bring the schema of a file up to date, and refuse files of other programs."""

import sqlite3
from pathlib import Path
from typing import Final

from resurgam.core.errors import StoreError
from resurgam.store.sqlite.statements import migrations

_APPLICATION: Final = int.from_bytes(b"resu", "big")
"""SQLite's ``application_id``, which marks every file of Resurgam (the `file` command shows it too)."""

_BASE: Final = 100
"""The ``user_version`` before the first migration. Files with a smaller one are of development versions before 0.2."""


def check_ours(connection: sqlite3.Connection, path: Path) -> None:
    """Raise `StoreError` for the database of another program, before anything in it is changed."""
    # In this order: a process that is creating the file commits its tables and its mark together.
    [tables] = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    [owner] = connection.execute("PRAGMA application_id").fetchone()
    if tables and owner != _APPLICATION:
        raise StoreError(f"{path}: this is the database of another program; give the path of a file of its own")


def newest_version() -> int:
    """Return the schema version that this Resurgam reads and writes."""
    return _BASE + len(migrations())


def check_readable(version: int, path: Path) -> None:
    """Raise `StoreError` for a file of a version that no migration starts from."""
    if version > newest_version():
        raise StoreError(
            f"{path}: the file has schema version {version}, this Resurgam knows {newest_version()}; use a newer one"
        )
    if 0 < version < _BASE:
        raise StoreError(f"{path}: the file is of a version before 0.2, which cannot be read; use a new file")


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the schema up to date; raise `StoreError` for a file of a newer version."""
    [version] = connection.execute("PRAGMA user_version").fetchone()
    if version == newest_version():
        return  # no commit, nor a wait for another writer, at every start
    connection.execute("BEGIN IMMEDIATE")
    try:
        [version] = connection.execute("PRAGMA user_version").fetchone()
        check_readable(version, path)
        for step in migrations()[max(0, version - _BASE) :]:
            for statement in _statements(step):
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {_APPLICATION}")
        connection.execute(f"PRAGMA user_version = {newest_version()}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _statements(script: str) -> list[str]:
    """Split a script into statements; ``executescript`` would commit the transaction around it."""
    found, pending = [], ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            found.append(pending)
            pending = ""
    return found
