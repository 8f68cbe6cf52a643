"""The commands that begin workflows, look at them and move them: each parses, calls the engine, and prints."""

import shlex
from collections.abc import Awaitable
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import click
import msgspec

from resurgam import Engine, Handle, Status
from resurgam.cli import description, output, tree
from resurgam.cli import history as histories
from resurgam.cli.arguments import (
    ask,
    example,
    read_arguments,
    read_cursor,
    read_failure,
    read_moment,
    read_patience,
    read_seconds,
    tags_option,
    text,
    with_store,
)
from resurgam.client.client import IfExists
from resurgam.core.codec import codec_for
from resurgam.core.event import Event
from resurgam.errors import AlreadyExists, SerializationError
from resurgam.store.records import Page


@click.command(epilog=example('resurgam start checkout \'[{"id": "o-1"}]\' --id o-1 --wait --store sqlite:///shop.db'))
@click.argument("name", callback=text)
@click.argument("arguments", metavar="[JSON]", required=False, callback=read_arguments)
@click.option("--id", callback=text, help="Your own id for it; one is made if there is none.")
@click.option("--queue", callback=text, help="The queue whose workers run it.")
@tags_option
@click.option("--delay", type=float, metavar="SECONDS", callback=read_seconds, help="When its code begins.")
@click.option(
    "--if-exists",
    type=click.Choice(["error", "attach", "replace"]),
    default="error",
    show_default=True,
    help="What to do if the id has an execution: refuse, take that one, or end it first.",
)
@click.option("--wait", is_flag=True, is_eager=True, help="Wait for the result and print it.")
@click.option("--timeout", type=float, metavar="SECONDS", callback=read_patience, help="How long to wait at most.")
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
    delay: float | None,
    if_exists: IfExists,
    wait: bool,
    timeout: float | None,
) -> None:
    """Start the workflow NAME.

    JSON is an array of its arguments, or one value as the only argument; write [[1, 2]] for a single list.
    """

    async def begin(engine: Engine) -> dict[str, Any]:
        starting = engine.start(name, *arguments, id=id, queue=queue, tags=tags, delay=delay, if_exists=if_exists)
        handle = await _begin(starting, id)
        ids = {"entity_id": handle.entity_id, "execution_id": handle.execution_id, "run_id": handle.run_id}
        if wait or not as_json:  # before the wait: whoever interrupts it must know the id
            output.started(name, ids, err=as_json)
        return ids | ({"result": await _result(handle, timeout)} if wait else {})

    content = ask(store, begin, create=True)
    if as_json:
        output.document(content)
    elif wait:
        output.lines([bytes(content["result"]).decode()])


async def _begin(starting: Awaitable[Handle[Any]], id: str | None) -> Handle[Any]:
    try:
        return await starting
    except AlreadyExists as error:
        message = (
            f"workflow id {id!r} is in use by an open execution; give another --id or --if-exists, or look at it: "
        )
        raise click.ClickException(output.one_line(f"{message}resurgam show {shlex.quote(id or '')}")) from error


async def _result(handle: Handle[Any], timeout: float | None) -> msgspec.Raw:
    return codec_for(Any).encode(await handle.result(timeout))


@click.command(
    "list",
    short_help="List workflows, newest first.",
    epilog=example("resurgam list --status failed --failure ValueError --since 2h --store sqlite:///shop.db"),
)
@click.option("--status", type=click.Choice([status.value for status in Status]), help="Only workflows in this status.")
@click.option("--name", callback=text, help="Only runs of this workflow.")
@tags_option
@click.option("--parent", metavar="ID", callback=text, help="Only the children of this workflow.")
@click.option(
    "--failure", metavar="TYPE", callback=read_failure, help="Only those that failed by this type, as ValueError."
)
@click.option(
    "--since", metavar="TIME", callback=read_moment, help="Created then or later: an age (90s, 2h, 7d) or ISO."
)
@click.option(
    "--until", metavar="TIME", callback=read_moment, help="Created before then; ISO times are UTC by default."
)
@click.option("--all", "every", is_flag=True, help="Every execution, not only the newest of each id.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="How many rows at most.")
@click.option("--cursor", callback=read_cursor, help="Go on where the page before ended.")
@with_store
def list_(  # noqa: PLR0913 -- as above
    *,
    store: str,
    as_json: bool,
    status: str | None,
    name: str | None,
    tags: dict[str, str],
    parent: str | None,
    failure: str | None,
    since: datetime | None,
    until: datetime | None,
    every: bool,
    limit: int,
    cursor: str | None,
) -> None:
    """List workflows, newest first: one row per id, with its newest execution.

    A workflow that was retried, continued or started again under its id is shown as it is now; --all lists each
    execution. --failure takes the name of the exception's type; a failed activity or child counts by its own cause.
    """

    def page(engine: Engine) -> Awaitable[Page]:
        return engine.list(
            status=status,
            name=name,
            tags=tags,
            parent=parent,
            failure=failure,
            since=since,
            until=until,
            newest_only=not every,
            limit=limit,
            cursor=cursor,
        )

    output.page(ask(store, page), as_json=as_json)


@click.command(
    short_help="Show where the workflow ID stands.",
    epilog=example("resurgam show o-1 --tree --store sqlite:///shop.db"),
)
@click.argument("id", callback=text)
@click.option("--tree", "whole", is_flag=True, help="All its runs, executions, steps and children.")
@click.option("--ids", is_flag=True, help="With --tree: whole ids, not only their ends.")
@with_store
def show(*, store: str, as_json: bool, id: str, whole: bool, ids: bool) -> None:
    """Show where the workflow ID stands: its input, result and state, and how far its open work has come.

    For each activity that is not answered: its attempt, the last error, the next try, the last heartbeat and the worker
    that holds it. A heartbeat is stored when the worker renews its lease, a few seconds after it was sent.
    """
    if ids and not whole:
        raise click.UsageError("--ids is about the ids of --tree; give both")
    if whole:
        tree.show(ask(store, lambda engine: engine.handle(id).tree()), ids=ids, as_json=as_json)
    else:
        description.show(ask(store, lambda engine: engine.handle(id).describe()), as_json=as_json)


@click.command(
    short_help="Print what was recorded of the workflow ID.",
    epilog=example("resurgam history o-1 --by-location --store sqlite:///shop.db"),
)
@click.argument("id", callback=text)
@click.option(
    "--execution", metavar="ID", callback=text, help="That of an earlier attempt, as show --tree --ids names it."
)
@click.option("--by-location", is_flag=True, help="In the order of locations, each call with what became of it.")
@click.option("--forgotten", is_flag=True, help="Also what its loops have forgotten, as far as it is kept.")
@with_store
def history(*, store: str, as_json: bool, id: str, execution: str | None, by_location: bool, forgotten: bool) -> None:
    """Print what was recorded of the workflow ID, of its newest execution unless another one is named.

    LOCATION is the place of a call and its version, as in {2}v1; of an answer, the number of the call it belongs to.
    """
    entries, active = ask(store, lambda engine: _recorded(engine, id, execution, forgotten=forgotten))
    ordered = histories.by_location(entries) if by_location else entries
    histories.show(ordered, {entry.seq for entry in active} if forgotten else None, as_json=as_json)


async def _recorded(
    engine: Engine, id: str, execution: str | None, *, forgotten: bool
) -> tuple[list[Event], list[Event]]:
    """Return the entries that are asked for, and the active ones. In this order: those forgotten meanwhile are so."""
    newest = engine.handle(id, execution_id=execution)
    entries = await newest.history(forgotten=forgotten)
    if not forgotten:
        return entries, entries
    return entries, await engine.handle(id, execution_id=newest.execution_id).history()  # another may have begun since


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
    lines = ask(store, lambda engine: engine.export(id, run))
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
        arrivals = ask(store, lambda engine: engine.import_(content.decode()), create=True)
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise SerializationError(f"{name}, line {number}", "not UTF-8; give the file as export wrote it") from error
    except SerializationError as error:
        raise SerializationError(f"{name}, {error.path}", error.reason) from error
    output.imported(arrivals, as_json=as_json)
