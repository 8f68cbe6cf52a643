"""The commands that remove closed workflows and free their disk space: `resurgam purge` and `vacuum`."""

import asyncio
import sys
from datetime import datetime
from typing import Final

import click

from resurgam import Engine, Status
from resurgam.cli import output
from resurgam.cli.arguments import call_engine, check_file, check_text, example, parse_moment, with_store
from resurgam.cli.text import one_line
from resurgam.store.open import shown_url, vacuum
from resurgam.store.records import EndedQuery
from resurgam.store.retention import Batch, Purge

_CLOSED: Final = [status.value for status in Status if status.terminal]

_BATCH: Final = 100
"""How many executions one transaction removes."""

_PROGRESS_EVERY: Final = 1000
"""After how many executions a long purge prints its progress."""


@click.command(
    "purge",
    epilog=example("resurgam purge --older-than 30d --status completed --yes --store sqlite:///shop.db"),
)
@click.option(
    "--older-than",
    "before",
    metavar="AGE",
    required=True,
    callback=parse_moment,
    help="Remove what closed at least this long ago: 90s, 15m, 2h, 30d, 4w; or before an ISO time.",
)
@click.option("--status", type=click.Choice(_CLOSED), help="Only workflows in this status.")
@click.option("--name", callback=check_text, help="Only runs of this workflow.")
@click.option("--dry-run", is_flag=True, help="Print how many would be removed, and remove nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@with_store
def purge_command(
    *,
    store: str,
    as_json: bool,
    before: datetime,
    status: str | None,
    name: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Remove closed workflows, with their histories; workers may serve the store meanwhile.

    Each attempt and each generation of a workflow counts as one execution. An execution that another one needs is kept:
    its parent is open and waits for it, or failed and may be retried; or it is one of the last before an open workflow
    that continues it; or it is the manual compensation of an execution that is kept. The file does not shrink, its
    pages are reused; `resurgam vacuum` frees them.
    """
    query = EndedQuery(
        before=round(before.timestamp() * 1000),
        status=None if status is None else Status(status),
        name=name,
        limit=_BATCH,
    )
    if not (dry_run or yes):
        _confirm(store, query, as_json=as_json)
    done = call_engine(store, lambda engine: _purge(engine, query, dry_run=dry_run))
    what = "would remove" if dry_run else "removed"
    kept = f"; kept {done.kept:,} that other workflows need" if done.kept else ""
    output.report(
        {"removed": done.removed, "kept": done.kept, "before": before, "dry_run": dry_run},
        f"{what} {_executions(done.removed)} that closed before {before.isoformat(sep=' ', timespec='seconds')}{kept}",
        as_json=as_json,
    )


def _confirm(store: str, query: EndedQuery, *, as_json: bool) -> None:
    if as_json or not _is_terminal():
        raise click.UsageError("purge needs a confirmation; give --yes to confirm, or --dry-run to count only")
    found = call_engine(store, lambda engine: _purge(engine, query, dry_run=True))
    if found.removed:
        click.confirm(one_line(f"Remove {_executions(found.removed)} from {shown_url(store)}?"), abort=True, err=True)


def _is_terminal() -> bool:
    return sys.stdin.isatty()


async def _purge(engine: Engine, query: EndedQuery, *, dry_run: bool) -> Batch:
    removed = kept = printed = 0
    async for batch in Purge(engine.store, query, dry_run=dry_run).batches():
        removed, kept = removed + batch.removed, kept + batch.kept
        if removed - printed >= _PROGRESS_EVERY:
            printed = removed
            click.echo(f"{removed:,} {'found' if dry_run else 'removed'} so far", err=True)
        await asyncio.sleep(0)
    return Batch(removed, kept)


def _executions(number: int) -> str:
    return f"{number:,} execution{'s' * (number != 1)}"


@click.command(
    "vacuum",
    epilog=example("resurgam vacuum --store sqlite:///shop.db"),
)
@with_store
def vacuum_command(*, store: str, as_json: bool) -> None:
    """Rewrite a SQLite file without the unused pages that purged workflows left.

    Workers may have the file open; their writes wait meanwhile, so choose a quiet time for a large file. The disk needs
    as much free space as the file has.
    """
    check_file(store)
    done = vacuum(store)
    output.report(
        {"before": done.before, "after": done.after},
        f"file size {_megabytes(done.before)} before, {_megabytes(done.after)} after: "
        f"{_megabytes(max(0, done.before - done.after))} freed",
        as_json=as_json,
    )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
