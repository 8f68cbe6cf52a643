"""`open_store(url)` and `open_inspector(url)`: the only module that knows which backends exist."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from resurgam.core.clock import Clock
from resurgam.core.errors import StoreError
from resurgam.store.protocol import OpenInspector, Store

if TYPE_CHECKING:
    from resurgam.store.sqlite.vacuum import Vacuumed

_KNOWN = (
    "memory:// (gone with the process), sqlite:///relative.db, sqlite:////absolute/path.db, sqlite:// (temporary), "
    "redis://host:port, redis+cluster://, redis+sentinel://, postgresql://user@host:port/database"
)
_REDIS = frozenset({"redis", "rediss"})
_POSTGRES = frozenset({"postgresql", "postgres"})
_FILES = ("sqlite:", "memory:")


def open_store(url: str, clock: Clock, *, name: str, lease: int) -> Store:
    """Return the store that *url* names, for the engine *name*. A claim holds for *lease* milliseconds."""
    if is_redis(url):
        return _open_redis(url, clock, name=name, lease=lease)
    if is_postgres(url):
        return _open_postgres(url, clock, name=name, lease=lease)
    parts = _parts(url)
    if parts.scheme == "memory" and not (parts.netloc or parts.path or parts.query):
        from resurgam.store.memory.store import MemoryStore  # noqa: PLC0415 -- only a user of this store pays for the import

        return MemoryStore(clock, lease=lease)
    if parts.scheme == "sqlite" and url.startswith("sqlite://") and not parts.netloc:
        from resurgam.store.sqlite.store import SqliteStore  # noqa: PLC0415 -- as above

        return SqliteStore(_path(parts), clock, name=name, lease=lease, synchronous=_synchronous(url, parts))
    raise StoreError(f"no store for {shown_url(url)!r}; this version knows {_KNOWN}")


def second_opening(url: str, store: Store, clock: Clock, *, name: str, lease: int) -> Callable[[], Store] | None:
    """Return a function that opens the data of *store* again, for another thread; None if only *store* can reach it."""
    if is_redis(url):
        return lambda: _open_redis(url, clock, name=name, lease=lease)
    if is_postgres(url):
        return lambda: _open_postgres(url, clock, name=name, lease=lease)
    parts = _parts(url)
    if parts.scheme != "sqlite":
        return None
    from resurgam.store.sqlite.store import SqliteStore  # noqa: PLC0415 -- as above

    assert isinstance(store, SqliteStore)
    database = store.database

    def reopen() -> Store:
        database.check_in_place()  # opening creates a file that is not there
        return SqliteStore(database.path, clock, name=name, lease=lease, synchronous=database.synchronous)

    return reopen


def open_inspector(url: str, clock: Clock) -> OpenInspector:
    """Return the read side of what *url* names: nothing is written, nothing is held, others may work on it."""
    if is_redis(url):
        with _hiredis_needed():
            from resurgam.store.redis.inspector import OpenRedisInspector  # noqa: PLC0415 -- as above

        return OpenRedisInspector(url, clock)
    if is_postgres(url):
        with _asyncpg_needed():
            from resurgam.store.postgres.inspector import OpenPostgresInspector  # noqa: PLC0415 -- as above

        return OpenPostgresInspector(url, clock)
    parts = _parts(url)
    path = _path(parts)
    if parts.scheme == "sqlite" and url.startswith("sqlite://") and not parts.netloc and path is not None:
        from resurgam.store.sqlite.inspector import ReadOnlyFile, SqliteInspector  # noqa: PLC0415 -- as above

        _synchronous(url, parts)
        return SqliteInspector(ReadOnlyFile(path), clock)
    raise StoreError(
        f"no store for {shown_url(url)!r} that can be looked at from here; "
        "this version knows sqlite:///file.db, redis://host and postgresql://host"
    )


def vacuum(url: str) -> "Vacuumed":
    """Give the free pages of the file that *url* names back to the file system; engines may have it open."""
    parts = _parts(url)
    path = _path(parts)
    if parts.scheme == "sqlite" and url.startswith("sqlite://") and not parts.netloc and path is not None:
        from resurgam.store.sqlite import vacuum  # noqa: PLC0415 -- as above

        _synchronous(url, parts)
        return vacuum.vacuum(path)
    raise StoreError(f"{shown_url(url)!r} has no file to be shortened; only sqlite:///file.db has one")


def shown_url(url: str) -> str:
    """Return a URL as people may see it: without its password."""
    if is_redis(url):
        with _hiredis_needed():
            from resurgam.store.redis.url import parse as parse_redis  # noqa: PLC0415 -- as above

        return str(parse_redis(url))
    if is_postgres(url):
        from resurgam.store.postgres.url import parse as parse_postgres  # noqa: PLC0415 -- as above

        return str(parse_postgres(url))
    if url.startswith(_FILES):
        return url
    return re.sub("//.*@", "//", url)  # a mistyped scheme may stand before a password too


def is_redis(url: str) -> bool:
    """Whether a URL names a Redis store; its errors must not have the password in them, so it is parsed elsewhere."""
    return url.partition(":")[0].partition("+")[0].lower() in _REDIS


def is_postgres(url: str) -> bool:
    """Whether a URL names a Postgres store, which is parsed elsewhere for the same reason."""
    return url.partition(":")[0].lower() in _POSTGRES


def _open_redis(url: str, clock: Clock, *, name: str, lease: int) -> Store:
    with _hiredis_needed():
        from resurgam.store.redis.store import RedisStore  # noqa: PLC0415 -- only a user of this store pays for the import

    return RedisStore(url, clock, name=name, lease=lease)


@contextmanager
def _hiredis_needed() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "hiredis":
            raise
        raise StoreError("a Redis store needs the package hiredis: pip install 'resurgam[redis]'") from error


def _open_postgres(url: str, clock: Clock, *, name: str, lease: int) -> Store:
    with _asyncpg_needed():
        from resurgam.store.postgres.store import PostgresStore  # noqa: PLC0415 -- only a user of this store pays for the import

    return PostgresStore(url, clock, name=name, lease=lease)


@contextmanager
def _asyncpg_needed() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise StoreError("a Postgres store needs the package asyncpg: pip install 'resurgam[postgres]'") from error


def _parts(url: str) -> SplitResult:
    parts = urlsplit(url)
    if parts.fragment:
        raise StoreError(f"{shown_url(url)!r}: write the # of a file's name as %23")
    return parts


def _path(parts: SplitResult) -> Path | None:
    """Return the file: relative after three slashes, absolute after four, none after two."""
    return Path(unquote(parts.path[1:])) if len(parts.path) > 1 else None


def _synchronous(url: str, parts: SplitResult) -> str:
    options = parse_qs(parts.query, keep_blank_values=True)
    unknown = sorted(options.keys() - {"synchronous"})
    level = options.get("synchronous", ["full"])[-1].upper()
    if unknown or level not in ("FULL", "NORMAL", "OFF"):
        raise StoreError(f"{url!r}: the only option is synchronous=full, normal or off")
    return level
