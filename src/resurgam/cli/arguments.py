"""Check and parse the arguments of commands, and call an engine without a worker."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import click
import msgspec

from resurgam import Engine, Registry
from resurgam.cli.text import one_line
from resurgam.runtime.system import SystemClock
from resurgam.store.open import is_postgres, is_redis

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_LONGEST = 1e9
"""The largest number of seconds accepted: thirty years."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}

_LONGEST_ECHO = 200
"""How many characters of a bad argument an error repeats."""


def check_text(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Return a name or an id, or several; refuse an empty one, or one that is not text."""
    for part in value if isinstance(value, tuple) else () if value is None else (value,):
        if not part:
            raise click.BadParameter("must not be empty", context, parameter)
        _encode(context, parameter, part)
    return value


def _encode(context: click.Context, parameter: click.Parameter, value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError as error:  # bytes of the command line that are not UTF-8
        raise click.BadParameter(f"{_cut(value)} is not UTF-8", context, parameter) from error


def _cut(value: str) -> str:
    """Return a bad argument as an error repeats it."""
    return repr(value) if len(value) <= _LONGEST_ECHO else f"{value[:_LONGEST_ECHO]!r}..."


def parse_json(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
    """Return the value of a JSON argument; None if it is absent."""
    try:
        return None if value is None else msgspec.json.decode(_encode(context, parameter, value))
    except (msgspec.DecodeError, RecursionError) as error:
        message = f"{_cut(value or '')} is not JSON: {error}; quote a string, as in '\"approve\"'"
        raise click.BadParameter(message, context, parameter) from error


def parse_object(context: click.Context, parameter: click.Parameter, value: str | None) -> dict[str, Any]:
    """Return the fields of a JSON object; none if it is absent."""
    parsed = {} if value is None else parse_json(context, parameter, value)
    if not isinstance(parsed, dict):
        raise click.BadParameter(
            f"""{_cut(value or "")} must be a JSON object, as in '{{"order_id": "o-1"}}'""", context, parameter
        )
    return parsed


def parse_arguments(context: click.Context, parameter: click.Parameter, value: str | None) -> list[Any]:
    """Return the arguments of a workflow, a query or an update: a JSON array, or one value as the only one."""
    parsed = [] if value is None else parse_json(context, parameter, value)
    return parsed if isinstance(parsed, list) else [parsed]


def parse_seconds(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    """Return a number of seconds; refuse one out of range."""
    if value is not None and not 0 <= value <= _LONGEST:  # NaN is neither
        raise click.BadParameter(f"{value} is not a number of seconds from 0 to {_LONGEST:g}", context, parameter)
    return value


def parse_cursor(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Return the cursor of a list; refuse one that no list has printed."""
    if value is not None and not re.fullmatch(r"\d{15}-.+", value):
        message = f"{_cut(value)} is not a cursor; copy the one that the page before printed"
        raise click.BadParameter(message, context, parameter)
    return value


def parse_moment(context: click.Context, parameter: click.Parameter, value: str | None) -> datetime | None:
    """Return a moment, given as an age such as 90s, 2h or 7d, or as a date or time in ISO form."""
    if value is None:
        return None
    _encode(context, parameter, value)
    try:
        if (age := _age(value)) is not None:
            return datetime.fromtimestamp(SystemClock().now() / 1000, UTC) - age
        moment = datetime.fromisoformat(value)
    except (ValueError, OverflowError) as error:
        message = f"{_cut(value)} must be an age such as 90s, 15m, 2h, 7d or 4w, or a time such as 2026-01-31T14:00Z"
        raise click.BadParameter(message, context, parameter) from error
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def parse_age(context: click.Context, parameter: click.Parameter, value: str | None) -> timedelta | None:
    """Return a length of time, given as 90s, 2h or 7d."""
    if value is None:
        return None
    _encode(context, parameter, value)
    try:
        age = _age(value)
    except OverflowError:
        age = None
    if not age:
        message = f"{_cut(value)} must be a length of time such as 90s, 15m, 2h, 7d or 4w"
        raise click.BadParameter(message, context, parameter)
    return age


def _age(value: str) -> timedelta | None:
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", value)
    return None if parts is None else timedelta(seconds=float(parts[1]) * _UNITS[parts[2]])


def parse_failure(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Return the name of an exception type; refuse one with its module."""
    check_text(context, parameter, value)
    if value is not None and "." in value:
        short = value.rpartition(".")[2]
        message = f"{_cut(value)} must be the name of a type without its module; use {_cut(short)}"
        raise click.BadParameter(message, context, parameter)
    return value


def parse_wait_timeout(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    """Return a number of seconds to wait; refuse one without --wait."""
    parse_seconds(context, parameter, value)
    if value is not None and not context.params.get("wait"):
        raise click.UsageError("--timeout needs --wait; give both", context)
    return value


def check_store(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    """Return the URL of a store that outlives the process."""
    if not value:
        message = "the store is missing: give --store URL or set RESURGAM_STORE, as in sqlite:///shop.db"
        raise click.UsageError(message, context)
    _encode(context, parameter, value)
    if is_redis(value) or is_postgres(value):
        return value  # the store checks it, and names it without its password
    try:
        parts = urlsplit(value)
    except ValueError as error:
        message = f"the store {_cut(value)} is not a URL: {error}; write it as in sqlite:///shop.db"
        raise click.UsageError(message, context) from error
    if value in ("memory:", "memory://") or (parts.scheme == "sqlite" and not parts.netloc and len(parts.path) < 2):
        message = f"the store {value!r} does not outlive this process; use a file, as in sqlite:///shop.db"
        raise click.UsageError(message, context)
    return value


def check_file(store: str, option: str = "--store") -> None:
    """Refuse a missing file: a command that only reads must not create it."""
    if is_redis(store) or is_postgres(store):
        return
    parts = urlsplit(store)
    if parts.scheme != "sqlite" or parts.netloc or parts.fragment:
        return  # the engine reports the error
    path = Path(unquote(parts.path[1:]))
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        message = f"there is no file {path.absolute()}; check {option}"
        raise click.ClickException(one_line(message)) from error
    except (OSError, ValueError):
        return  # as above


def _parse_tags(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition("=") for value in check_text(context, parameter, values)]
    for key, equals, _ in pairs:
        if not (key and equals):
            raise click.BadParameter(f"{_cut(key + equals)} is not of the form KEY=VALUE", context, parameter)
    return {key: value for key, _, value in pairs}


def with_store(function: F) -> F:
    """Add the options of every command: --store and --json."""
    store = click.option(
        "--store",
        metavar="URL",
        envvar="RESURGAM_STORE",
        show_envvar=True,
        callback=check_store,
        help="The store, as in sqlite:///shop.db.",
    )
    as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
    return store(as_json(function))


def example(line: str) -> str:
    """Return the last paragraph of a command's help: an example."""
    return f"\b\nExample: {line}"


tags_option = click.option(
    "--tag", "tags", metavar="KEY=VALUE", multiple=True, callback=_parse_tags, help="Repeatable."
)


def call_engine(
    store: str,
    call: Callable[[Engine], Awaitable[T]],
    *,
    create: bool = False,
    registry: Registry | None = None,
    archive: str | None = None,
) -> T:
    """Open an engine without a worker, and return the result of *call*; with *create* the file need not exist."""
    if not create:
        check_file(store)
    return run_engine(store, call, registry=registry, archive=archive)


def run_engine(
    store: str, call: Callable[[Engine], Awaitable[T]], *, registry: Registry | None = None, archive: str | None = None
) -> T:
    """Open an engine without a worker on any store, and return the result of *call*."""

    async def run() -> T:
        async with Engine(store, worker=False, registry=registry, archive=archive) as engine:
            return await call(engine)

    return asyncio.run(run())
