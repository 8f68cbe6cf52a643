"""Run workloads, each in a process of its own, so that their memory is measured separately."""

import asyncio
import os
import platform
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence

import msgspec

from resurgam.bench.catalog import (
    COMPARED,
    EXPECTATIONS,
    POSTGRES_EXPECTATIONS,
    SERVER_EXPECTATIONS,
    WORKLOADS,
    Expectation,
    Verdict,
    compared,
    verdicts,
)
from resurgam.bench.figures import Figures, level_of
from resurgam.bench.storage import Storage, open_storage
from resurgam.core.errors import StoreError
from resurgam.engine import Engine
from resurgam.store.open import is_postgres, is_redis


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a run. *level* is the ``PRAGMA synchronous`` of an open file, *server* what was found of a server.

    *beside* are the figures of some workloads on SQLite, in temporary files, with which those on Redis are compared.
    *failed* are the errors of workloads that did not run; *skipped* are those that the store does not support.
    """

    place: str
    level: str | None
    server: str | None
    scale: float
    python: str
    sqlite: str
    cores: int
    figures: list[Figures]
    beside: list[Figures]
    verdicts: list[Verdict]
    skipped: list[str]
    failed: dict[str, str]


def run(
    names: Sequence[str] = tuple(WORKLOADS),
    *,
    url: str | None = None,
    scale: float = 1.0,
    progress: Callable[[str], None] = lambda _: None,
) -> Report:
    """Run workloads one after another; *progress* is called with the name of each when it starts."""
    with open_storage(url) as storage:
        where, level, server = str(storage), asyncio.run(_level(storage)), storage.server
    figures: list[Figures] = []
    beside: list[Figures] = []
    skipped: list[str] = []
    failed: dict[str, str] = {}
    for name in names:
        progress(name)
        try:
            measured = _run(name, scale, url)
            if url is not None and is_redis(url) and name in COMPARED:
                others = _run(name, scale, None)
                measured = compared(measured, others)
                beside += others
        except StoreError as error:
            failed[name] = str(error)
        else:
            figures += measured
            skipped += [] if measured else [name]
    return Report(
        place=where,
        level=level,
        server=server,
        scale=scale,
        python=platform.python_version(),
        sqlite=sqlite3.sqlite_version,
        cores=os.cpu_count() or 1,
        figures=figures,
        beside=beside,
        verdicts=verdicts(figures, scale=scale, expectations=_expectations(url)),
        skipped=skipped,
        failed=failed,
    )


def _expectations(url: str | None) -> Sequence[Expectation]:
    if url is not None and is_redis(url):
        return SERVER_EXPECTATIONS
    return POSTGRES_EXPECTATIONS if url is not None and is_postgres(url) else EXPECTATIONS


async def _level(storage: Storage) -> str | None:
    async with Engine(storage.url("probe"), worker=False) as engine:
        return level_of(engine.store)


def _run(name: str, scale: float, url: str | None) -> list[Figures]:
    command = [sys.executable, "-m", "resurgam.bench", name, repr(scale), *([] if url is None else [url])]
    done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603 -- our own
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise StoreError(last[0] if last else f"its process ended with {done.returncode}")
    return msgspec.json.decode(done.stdout, type=list[Figures])
