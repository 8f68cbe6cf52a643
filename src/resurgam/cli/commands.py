"""The commands that talk to workflows: each parses, calls the engine, and prints what it says."""

import asyncio
import shlex
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import unquote, urlsplit

import click
import msgspec

from resurgam import Engine, Handle, Status
from resurgam.cli import output
from resurgam.core.codec import codec_for
from resurgam.core.event import Event
from resurgam.errors import AlreadyExists, SerializationError

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_LONGEST = 1e9
"""Seconds, thirty years: nobody waits longer for a result."""

_LONGEST_ECHO = 200
"""Characters of a wrong argument that an error repeats."""


# What command lines are made of.


def text(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Refuse a name or an id, or several, that is empty or no text."""
    for part in value if isinstance(value, tuple) else () if value is None else (value,):
        if not part:
            raise click.BadParameter("it is empty", context, parameter)
        _encode(context, parameter, part)
    return value


def _encode(context: click.Context, parameter: click.Parameter, value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError as error:  # bytes of the command line that are not UTF-8
        raise click.BadParameter(f"{_cut(value)} is not UTF-8", context, parameter) from error


def _cut(value: str) -> str:
    """Return a wrong argument as an error repeats it."""
    return repr(value) if len(value) <= _LONGEST_ECHO else f"{value[:_LONGEST_ECHO]!r}..."


def _json(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
    try:
        return None if value is None else msgspec.json.decode(_encode(context, parameter, value))
    except (msgspec.DecodeError, RecursionError) as error:
        message = f"{_cut(value or '')} is not JSON: {error}; a string has quotes, as in '\"approve\"'"
        raise click.BadParameter(message, context, parameter) from error


def _arguments(context: click.Context, parameter: click.Parameter, value: str | None) -> list[Any]:
    """Return the arguments of a workflow: an array of them, or one value as the only one."""
    read = [] if value is None else _json(context, parameter, value)
    return read if isinstance(read, list) else [read]


def _seconds(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    if value is not None and not 0 <= value <= _LONGEST:  # NaN is neither
        raise click.BadParameter(f"{value} is not a number of seconds from 0 to {_LONGEST:g}", context, parameter)
    if value is not None and not context.params.get("wait"):
        raise click.UsageError("--timeout says how long to --wait; give both", context)
    return value


def _check_store(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    if not value:
        message = "no store is named: give --store URL or set RESURGAM_STORE, as in sqlite:///shop.db"
        raise click.UsageError(message, context)
    _encode(context, parameter, value)
    try:
        parts = urlsplit(value)
    except ValueError as error:
        message = f"the store {_cut(value)} is no URL: {error}; write it as in sqlite:///shop.db"
        raise click.UsageError(message, context) from error
    if value in ("memory:", "memory://") or (parts.scheme == "sqlite" and not parts.netloc and len(parts.path) < 2):
        message = f"the store {value!r} is gone with this process; name a file that lasts, as in sqlite:///shop.db"
        raise click.UsageError(message, context)
    return value


def check_file(store: str) -> None:
    """Refuse a file that is not there: who only looks must not create one."""
    parts = urlsplit(store)
    if parts.scheme != "sqlite" or parts.netloc or parts.fragment:
        return  # the engine says what is wrong with it
    path = Path(unquote(parts.path[1:]))
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        message = f"there is no file {path.absolute()}; check --store"
        raise click.ClickException(output.one_line(message)) from error
    except (OSError, ValueError):
        return  # as above


def _read_tags(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition("=") for value in text(context, parameter, values)]
    for key, equals, _ in pairs:
        if not (key and equals):
            raise click.BadParameter(f"{_cut(key + equals)} is not of the form KEY=VALUE", context, parameter)
    return {key: value for key, _, value in pairs}


def with_store(function: F) -> F:
    """Add the options that every command has."""
    store = click.option(
        "--store",
        metavar="URL",
        envvar="RESURGAM_STORE",
        show_envvar=True,
        callback=_check_store,
        help="The store, as in sqlite:///shop.db.",
    )
    as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
    return store(as_json(function))


def example(line: str) -> str:
    """Return the end of a command's help, with a line to copy."""
    return f"\b\nExample: {line}"


_tags = click.option("--tag", "tags", metavar="KEY=VALUE", multiple=True, callback=_read_tags, help="Repeatable.")


def _ask(store: str, question: Callable[[Engine], Awaitable[T]], *, create: bool = False) -> T:
    """Open the store without serving it, and return what the engine answers."""
    if not create:
        check_file(store)

    async def talk() -> T:
        async with Engine(store, worker=False) as engine:
            return await question(engine)

    return asyncio.run(talk())


# The commands.


@click.command(epilog=example('resurgam start checkout \'[{"id": "o-1"}]\' --id o-1 --wait --store sqlite:///shop.db'))
@click.argument("name", callback=text)
@click.argument("arguments", metavar="[JSON]", required=False, callback=_arguments)
@click.option("--id", callback=text, help="Your own id for it; one is made if there is none.")
@click.option("--queue", callback=text, help="The queue whose workers run it.")
@_tags
@click.option("--wait", is_flag=True, is_eager=True, help="Wait for the result and print it.")
@click.option("--timeout", type=float, metavar="SECONDS", callback=_seconds, help="How long to wait at most.")
@with_store
def start(  # noqa: PLR0913 -- each is an option of the command line
    *,
    store: str,
    as_json: bool,
    name: str,
    arguments: list[Any],
    id: str | None,
    queue: str | None,
    tags: dict[str, str],
    wait: bool,
    timeout: float | None,
) -> None:
    """Start the workflow NAME.

    JSON is an array of its arguments, or one value as the only argument; write [[1, 2]] for a single list.
    """

    async def begin(engine: Engine) -> dict[str, Any]:
        handle = await _begin(engine.start(name, *arguments, id=id, queue=queue, tags=tags), id)
        ids = {"entity_id": handle.entity_id, "execution_id": handle.execution_id, "run_id": handle.run_id}
        if wait or not as_json:  # before the wait: whoever interrupts it must know the id
            output.started(name, ids, err=as_json)
        return ids | ({"result": await _result(handle, timeout)} if wait else {})

    content = _ask(store, begin, create=True)
    if as_json:
        output.document(content)
    elif wait:
        output.lines([bytes(content["result"]).decode()])


async def _begin(starting: Awaitable[Handle[Any]], id: str | None) -> Handle[Any]:
    try:
        return await starting
    except AlreadyExists as error:
        message = f"workflow id {id!r} is in use by an open execution; give another --id, or look at that one: "
        raise click.ClickException(output.one_line(f"{message}resurgam show {shlex.quote(id or '')}")) from error


async def _result(handle: Handle[Any], timeout: float | None) -> msgspec.Raw:
    return codec_for(Any).encode(await handle.result(timeout))


@click.command("list", epilog=example("resurgam list --status failed --tag shop=berlin --store sqlite:///shop.db"))
@click.option("--status", type=click.Choice([status.value for status in Status]), help="Only those that stand so.")
@click.option("--name", callback=text, help="Only those of this workflow.")
@_tags
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="How many at most.")
@click.option("--cursor", callback=text, help="Go on where the page before ended.")
@with_store
def list_(
    *,
    store: str,
    as_json: bool,
    status: str | None,
    name: str | None,
    tags: dict[str, str],
    limit: int,
    cursor: str | None,
) -> None:
    """List workflows, newest first."""
    found = _ask(store, lambda e: e.list(status=status, name=name, tags=tags, limit=limit, cursor=cursor))
    output.page(found, as_json=as_json)


@click.command(epilog=example("resurgam show o-1 --store sqlite:///shop.db"))
@click.argument("id", callback=text)
@with_store
def show(*, store: str, as_json: bool, id: str) -> None:
    """Show where the workflow ID stands, and what it waits for."""
    output.description(_ask(store, lambda engine: engine.handle(id).describe()), as_json=as_json)


@click.command(epilog=example("resurgam history o-1 --store sqlite:///shop.db"))
@click.argument("id", callback=text)
@click.option("--forgotten", is_flag=True, help="Also what its loops have forgotten, as far as it is kept.")
@with_store
def history(*, store: str, as_json: bool, id: str, forgotten: bool) -> None:
    """Print what was recorded of the workflow ID."""
    if forgotten:
        kept, active = _ask(store, lambda engine: _kept(engine, id))
        output.kept_history(kept, {entry.seq for entry in active}, as_json=as_json)
    else:
        output.history(_ask(store, lambda engine: engine.handle(id).history()), as_json=as_json)


async def _kept(engine: Engine, id: str) -> tuple[list[Event], list[Event]]:
    """Return all entries that are kept, and the active ones. In this order: what is forgotten meanwhile is marked so."""
    newest = engine.handle(id)
    kept = await newest.history(forgotten=True)
    return kept, await engine.handle(id, newest.run_id).history()  # another run may have begun since


@click.command(epilog=example("resurgam signal o-1 approve true --store sqlite:///shop.db"))
@click.argument("id", callback=text)
@click.argument("name", callback=text)
@click.argument("value", metavar="[JSON]", required=False, callback=_json)
@click.option("--id", "signal_id", callback=text, help="Its own id; the same one sent twice counts once.")
@with_store
def signal(*, store: str, as_json: bool, id: str, name: str, value: Any, signal_id: str | None) -> None:
    """Send the signal NAME to the workflow ID, with a value or null."""
    _ask(store, lambda engine: engine.handle(id).signal(name, value, id=signal_id))
    output.told({"entity_id": id, "signal": name}, f"sent signal {name!r} to {id}", as_json=as_json)


@click.command(epilog=example("resurgam cancel o-1 --reason 'out of stock' --store sqlite:///shop.db"))
@click.argument("id", callback=text)
@click.option("--reason", callback=text, help="Recorded in its history.")
@with_store
def cancel(*, store: str, as_json: bool, id: str, reason: str | None) -> None:
    """Ask the workflow ID to stop; its code may clean up first."""
    _ask(store, lambda engine: engine.handle(id).cancel(reason or ""))
    output.told({"entity_id": id, "cancel": reason or ""}, f"asked {id} to stop", as_json=as_json)


@click.command(
    short_help="End the workflow ID at once, without clean-up.",
    epilog=example("resurgam terminate o-1 --reason 'sent by mistake' --store sqlite:///shop.db"),
)
@click.argument("id", callback=text)
@click.option("--reason", callback=text, help="Recorded in its history.")
@with_store
def terminate(*, store: str, as_json: bool, id: str, reason: str | None) -> None:
    """End the workflow ID at once; its code is not asked, and nothing is cleaned up."""
    _ask(store, lambda engine: engine.handle(id).terminate(reason or ""))
    output.told({"entity_id": id, "terminate": reason or ""}, f"terminated {id}", as_json=as_json)


@click.command(
    short_help="Hand out again what was put aside or is parked.",
    epilog=example("resurgam retry o-1 --store sqlite:///shop.db"),
)
@click.argument("id", callback=text)
@with_store
def retry(*, store: str, as_json: bool, id: str) -> None:
    """Hand out again what of the workflow ID was put aside after too many tries, or is parked."""
    count = _ask(store, lambda engine: engine.handle(id).retry())
    output.told({"entity_id": id, "revived": count}, f"revived {count} of {id}", as_json=as_json)


@click.command(
    short_help="Write the workflow ID as lines of JSON.",
    epilog=example("resurgam export o-1 --output o-1.jsonl --store sqlite:///shop.db"),
)
@click.argument("id", callback=text)
@click.option("--run", metavar="RUN", callback=text, help="Only the executions of this run.")
@click.option("--output", "file", metavar="FILE", callback=text, help="Write to a file, not to the standard output.")
@with_store
def export(*, store: str, as_json: bool, id: str, run: str | None, file: str | None) -> None:
    """Write all that the store keeps of the workflow ID as lines of JSON, for import into another store.

    The workflow itself goes on here: stop its workers before, or terminate it afterwards.
    """
    lines = _ask(store, lambda engine: engine.export(id, run))
    if file is None or file == "-":
        output.lines(lines)
        return
    try:
        Path(file).write_text("".join(f"{line}\n" for line in lines), "utf-8", newline="\n")
    except OSError as error:
        message = f"{file} cannot be written: {error.strerror}; give another --output"
        raise click.ClickException(output.one_line(message)) from error
    content = {"entity_id": id, "output": file, "lines": len(lines)}
    output.told(content, f"exported {id} to {file} ({len(lines)} lines)", as_json=as_json)


@click.command(
    "import",
    short_help="Take in what export wrote to FILE.",
    epilog=example("resurgam import o-1.jsonl --store sqlite:///other.db"),
)
@click.argument("file", type=click.File("rb"))
@with_store
def import_(*, store: str, as_json: bool, file: BinaryIO) -> None:
    """Take in what export wrote to FILE (- is the standard input), all of it or nothing.

    It goes on here exactly where it was; what is here already is left alone.
    """
    name, content = getattr(file, "name", "-"), file.read()
    try:
        arrivals = _ask(store, lambda engine: engine.import_(content.decode()), create=True)
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise SerializationError(f"{name}, line {number}", "not UTF-8; give the file as export wrote it") from error
    except SerializationError as error:
        raise SerializationError(f"{name}, {error.path}", error.reason) from error
    output.imported(arrivals, as_json=as_json)
