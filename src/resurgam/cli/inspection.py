"""The commands that read workflows: `resurgam list`, `show` and `history`."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Any, TypeAlias, get_args

import click

from resurgam import Engine, Status
from resurgam.cli import description, output, tree
from resurgam.cli import history as histories
from resurgam.cli.archive import archive_option, archived_option, call_archived, check_archived
from resurgam.cli.arguments import (
    call_engine,
    check_text,
    example,
    parse_cursor,
    parse_failure,
    parse_moment,
    tags_option,
    with_store,
)
from resurgam.client.listing import Kind
from resurgam.core.event import Event
from resurgam.store.records import Page

Caller: TypeAlias = Callable[..., Any]
"""How a command reads: from the store, or from an archive."""


@click.command(
    "list",
    epilog=example("resurgam list --status failed --failure ValueError --since 2h --store sqlite:///shop.db"),
)
@click.option("--status", type=click.Choice([status.value for status in Status]), help="Only workflows in this status.")
@click.option("--kind", type=click.Choice(get_args(Kind)), help="Only workflows, or only goal flows.")
@click.option("--name", callback=check_text, help="Only runs of this workflow.")
@tags_option
@click.option("--parent", metavar="ID", callback=check_text, help="Only the children of this workflow.")
@click.option(
    "--failure", metavar="TYPE", callback=parse_failure, help="Only runs that failed with this type, as ValueError."
)
@click.option(
    "--since", metavar="TIME", callback=parse_moment, help="Created then or later: an age (90s, 2h, 7d) or ISO."
)
@click.option(
    "--until", metavar="TIME", callback=parse_moment, help="Created before then; ISO times are UTC by default."
)
@click.option("--all", "every", is_flag=True, help="Every execution, not only the newest of each id.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="The most rows to print.")
@click.option("--cursor", callback=parse_cursor, help="Continue after the page that printed this cursor.")
@with_store
def list_(  # noqa: PLR0913 -- each is an option of the command line
    *,
    store: str,
    as_json: bool,
    status: str | None,
    kind: Kind | None,
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

    A workflow that was retried, continued or started again under its id is shown in its current state; --all lists each
    execution. --failure is the name of the exception's type; a failed activity or child counts by its own cause.
    """

    def page(engine: Engine) -> Awaitable[Page]:
        return engine.list(
            status=status,
            kind=kind,
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

    output.page(call_engine(store, page), as_json=as_json)


@click.command(
    epilog=example("resurgam show o-1 --tree --store sqlite:///shop.db"),
)
@click.argument("id", callback=check_text)
@click.option("--tree", "whole", is_flag=True, help="Show all its runs, executions, steps and children.")
@click.option("--ids", is_flag=True, help="With --tree: print ids in full.")
@archived_option
@archive_option
@with_store
def show(*, store: str, as_json: bool, id: str, whole: bool, ids: bool, archived: bool, archive: str | None) -> None:
    """Show the status of the workflow ID: its input, result and state, and the progress of its open work.

    For each open activity: its attempt, the last error, the time of the next attempt, the last heartbeat and the worker
    that holds it. A heartbeat is stored when the worker renews its lease, a few seconds after it was sent.

    Of a workflow whose history is in an archive the store knows no more than its row; --archived reads the rest.
    """
    if ids and not whole:
        raise click.UsageError("--ids needs --tree; give both")
    check_archived(archived)
    call: Caller = partial(call_archived, id=id, archive=archive, whole=whole) if archived else call_engine
    if whole:
        tree.show(call(store, call=lambda engine: engine.handle(id).tree()), ids=ids, as_json=as_json)
    else:
        description.show(call(store, call=lambda engine: engine.handle(id).describe()), as_json=as_json)


@click.command(
    epilog=example("resurgam history o-1 --by-location --store sqlite:///shop.db"),
)
@click.argument("id", callback=check_text)
@click.option(
    "--execution",
    metavar="ID",
    callback=check_text,
    help="The execution to print, as show --tree --ids lists them; the newest by default.",
)
@click.option("--by-location", is_flag=True, help="Sort by location: each call with its answers.")
@click.option("--forgotten", is_flag=True, help="Include entries that loops have forgotten and the store still keeps.")
@archived_option
@archive_option
@with_store
def history(  # noqa: PLR0913 -- each is an option of the command line
    *,
    store: str,
    as_json: bool,
    id: str,
    execution: str | None,
    by_location: bool,
    forgotten: bool,
    archived: bool,
    archive: str | None,
) -> None:
    """Print the history of the workflow ID, of its newest execution by default.

    LOCATION is the location of a call and its version, as in {2}v1; for an answer, the number of the call it belongs
    to.
    """
    check_archived(archived)
    call: Caller = partial(call_archived, id=id, archive=archive, execution=execution) if archived else call_engine
    entries, active = call(store, call=lambda engine: _entries(engine, id, execution, forgotten=forgotten))
    ordered = histories.by_location(entries) if by_location else entries
    histories.show(ordered, {entry.seq for entry in active} if forgotten else None, as_json=as_json)


async def _entries(
    engine: Engine, id: str, execution: str | None, *, forgotten: bool
) -> tuple[list[Event], list[Event]]:
    """Return the entries to print, and the active ones, read last: an entry forgotten in between counts as forgotten."""
    newest = engine.handle(id, execution_id=execution)
    entries = await newest.history(forgotten=forgotten)
    if not forgotten:
        return entries, entries
    # By execution_id, because a newer execution may have started in between.
    return entries, await engine.handle(id, execution_id=newest.execution_id).history()
