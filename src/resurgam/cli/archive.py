"""Archives on the command line: `resurgam archive`, and the options of other commands that read one."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Final, TypeVar

import click
import msgspec
from click.core import ParameterSource

from resurgam import Engine, Retain
from resurgam.archive.archive import Archive, base_of, open_archive
from resurgam.archive.archiver import Progress
from resurgam.cli import output
from resurgam.cli.arguments import call_engine, example, parse_age, parse_moment, run_engine, with_store
from resurgam.core.errors import NotFound
from resurgam.core.retry import milliseconds
from resurgam.store.records import Instance
from resurgam.store.retention_rules import check_archived_first

T = TypeVar("T")

_PROGRESS_EVERY: Final = 100
"""After how many files a long run prints its progress."""


def _check_archive(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Return the URL of an archive; refuse one that cannot be opened."""
    try:
        return None if value is None else open_archive(value).url
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from error


archive_option = click.option(
    "--archive",
    metavar="URL",
    envvar="RESURGAM_ARCHIVE",
    show_envvar=True,
    callback=_check_archive,
    help="The folder of the archive, as in file:///srv/archive.",
)

archive_after_option = click.option(
    "--archive-after",
    metavar="AGE",
    callback=parse_age,
    help="Move workflows that closed this long ago to the archive: 12h, 30d, 4w.",
)

archived_option = click.option("--archived", is_flag=True, help="Read the archive, not the store.")


def check_archived(archived: object) -> None:
    """Refuse --archive on the command line without --archived: it would have no effect."""
    context = click.get_current_context()
    if not archived and context.get_parameter_source("archive") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--archive needs --archived; give both")


def check_archive_after(archive: str | None, after: timedelta | None, retain: Sequence[Retain] = ()) -> None:
    """Refuse an age without an archive, and rules that remove runs before they have that age."""
    if after is not None and archive is None:
        raise click.UsageError("--archive-after needs --archive; give both")
    if after is not None:
        try:
            check_archived_first(retain, milliseconds(after))
        except ValueError as error:
            raise click.UsageError(
                str(error).replace("archive_after", "--archive-after").replace("retain ", "--retain ")
            ) from error


@click.command(
    epilog=example("resurgam archive --older-than 30d --archive file:///srv/archive --store sqlite:///shop.db"),
)
@click.option(
    "--older-than",
    "before",
    metavar="AGE",
    required=True,
    callback=parse_moment,
    help="Archive what closed at least this long ago: 90s, 15m, 2h, 30d, 4w; or before an ISO time.",
)
@click.option("--dry-run", is_flag=True, help="Print how many would be archived, and change nothing.")
@archive_option
@with_store
def archive(*, store: str, as_json: bool, before: datetime, dry_run: bool, archive: str | None) -> None:
    """Move closed workflows and flows to an archive, each tree to one file; workers may serve the store meanwhile.

    A tree goes once all of it is closed and old enough; of a workflow that continues as new, older generations go before.
    The store keeps one row of each. What was archived is read by --archived, and brought back by resurgam import. An
    interrupted run is finished by the next one.
    """
    if archive is None:
        raise click.UsageError("the archive is missing: give --archive URL or set RESURGAM_ARCHIVE")
    done = call_engine(store, lambda engine: _archive(engine, before, dry_run=dry_run), archive=archive)
    what = "would archive" if dry_run else "archived"
    failed = f"; {done.failed:,} could not be archived, see the log" if done.failed else ""
    output.report(
        {**msgspec.structs.asdict(done), "archive": archive, "before": before, "dry_run": dry_run},
        f"{what} {done.executions:,} execution{'s' * (done.executions != 1)} in {done.files:,} "
        f"file{'s' * (done.files != 1)} of {archive}{failed}",
        as_json=as_json,
    )
    if done.failed:
        click.get_current_context().exit(1)


async def _archive(engine: Engine, before: datetime, *, dry_run: bool) -> Progress:
    archiver = engine.archiver(max(0, engine.clock.now() - round(before.timestamp() * 1000)))
    done = Progress()
    if dry_run:
        async for unit in archiver.selected():
            done = Progress(executions=done.executions + len(unit.members), files=done.files + 1)
        return done
    async for now in archiver.units(wait=True):
        done = now
        if done.files and done.files % _PROGRESS_EVERY == 0:
            click.echo(f"{done.executions:,} archived so far", err=True)
    return done


# Reading: what an archive holds is adopted by a store in memory, and read there as anything else.


def call_archived(
    store: str,
    id: str,
    call: Callable[[Engine], Awaitable[T]],
    *,
    archive: str | None,
    execution: str | None = None,
    whole: bool = False,
) -> T:
    """Call with an engine that has the archived executions of a workflow: the newest, or *execution*, or the *whole*."""
    lines = call_engine(
        store, lambda engine: archived_lines(engine, id, execution, archive=archive, whole=whole, readable_only=True)
    )

    async def read(engine: Engine) -> T:
        for file in lines:
            await engine.import_(file)
        return await call(engine)

    return run_engine("memory://", read)


async def archived_lines(
    engine: Engine,
    id: str,
    execution: str | None = None,
    *,
    archive: str | None = None,
    whole: bool = False,
    readable_only: bool = False,
) -> list[str]:
    """Return the lines of the files that hold a workflow, or the newest of its archived executions.

    A damaged execution is an error, or is left out with *readable_only*.
    """
    rows = [one for one in await _rows(engine, id, execution, whole=whole) if one.archived is not None]
    if rows:
        urls = list(dict.fromkeys(one.archived or "" for one in rows))
        return [
            await _opened(url, archive).lines(url, id, readable_only=readable_only)
            for url in (urls if whole else urls[-1:])
        ]
    if archive is not None:  # the store may have lost its rows
        found = open_archive(archive)
        if urls := await found.find(id):
            return [await found.lines(url, id, readable_only=readable_only) for url in urls]
    raise NotFound(f"nothing of {id!r} is in an archive; leave out --archived, or name the archive by --archive")


async def _rows(engine: Engine, id: str, execution: str | None, *, whole: bool) -> list[Instance]:
    """Return the executions of a workflow, oldest first; only the newest if that is enough."""
    newest = await engine.store.inspector.get(id, execution_id=execution)
    if newest is None or execution is not None or (newest.archived is not None and not whole):
        return [] if newest is None else [newest]
    return [copy.instance for copy in await engine.store.transfer.copies(id)]


def _opened(url: str, archive: str | None) -> Archive:
    return open_archive(base_of(url) if archive is None else archive)
