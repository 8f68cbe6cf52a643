"""The commands that remove ended workflows and give their space back: `resurgam purge` and `resurgam vacuum`."""

import asyncio
import sys
from datetime import datetime
from typing import Final

import click

from resurgam import Engine, Status
from resurgam.cli import output
from resurgam.cli.arguments import ask, check_file, example, read_moment, text, with_store
from resurgam.store.open import vacuum
from resurgam.store.records import EndedQuery
from resurgam.store.retention import Batch, Purge

_ENDED: Final = [status.value for status in Status if status.terminal]

_BATCH: Final = 100
"""Executions removed in one transaction."""

_TELL_EVERY: Final = 1000
"""Executions after which a long purge says how far it is."""


@click.command(
    "purge",
    short_help="Remove workflows that have ended.",
    epilog=example("resurgam purge --older-than 30d --status completed --yes --store sqlite:///shop.db"),
)
@click.option(
    "--older-than",
    "before",
    metavar="AGE",
    required=True,
    callback=read_moment,
    help="How long ago they ended at least: 90s, 15m, 2h, 30d, 4w; or an ISO time before which they ended.",
)
@click.option("--status", type=click.Choice(_ENDED), help="Only those that ended so.")
@click.option("--name", callback=text, help="Only those of this workflow.")
@click.option("--dry-run", is_flag=True, help="Say how many would be removed, and remove nothing.")
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
    """Remove workflows that have ended, with their histories; workers may serve the store meanwhile.

    Each attempt and each generation of a workflow counts as one execution. One that an open workflow needs is kept: its
    parent waits for it, or it is one of the last before an open workflow that continues it. The file does not shrink,
    its pages are used again; `resurgam vacuum` gives them back.
    """
    query = EndedQuery(
        before=round(before.timestamp() * 1000),
        status=None if status is None else Status(status),
        name=name,
        limit=_BATCH,
    )
    if not (dry_run or yes):
        _confirm(store, query, as_json=as_json)
    done = ask(store, lambda engine: _purge(engine, query, dry_run=dry_run))
    what = "would remove" if dry_run else "removed"
    kept = f"; kept {done.kept:,} that other workflows need" if done.kept else ""
    output.told(
        {"removed": done.removed, "kept": done.kept, "before": before, "dry_run": dry_run},
        f"{what} {_executions(done.removed)} that ended before {before.isoformat(sep=' ', timespec='seconds')}{kept}",
        as_json=as_json,
    )


def _confirm(store: str, query: EndedQuery, *, as_json: bool) -> None:
    if as_json or not _is_terminal():
        raise click.UsageError("purge asks before it removes anything; give --yes to confirm, or --dry-run to look")
    found = ask(store, lambda engine: _purge(engine, query, dry_run=True))
    if found.removed:
        click.confirm(output.one_line(f"Remove {_executions(found.removed)} from {store}?"), abort=True, err=True)


def _is_terminal() -> bool:
    return sys.stdin.isatty()


async def _purge(engine: Engine, query: EndedQuery, *, dry_run: bool) -> Batch:
    removed = kept = said = 0
    async for batch in Purge(engine.store, query, dry_run=dry_run).batches():
        removed, kept = removed + batch.removed, kept + batch.kept
        if removed - said >= _TELL_EVERY:
            said = removed
            click.echo(f"{removed:,} {'found' if dry_run else 'removed'} so far", err=True)
        await asyncio.sleep(0)
    return Batch(removed, kept)


def _executions(number: int) -> str:
    return f"{number:,} execution{'s' * (number != 1)}"


@click.command(
    "vacuum",
    short_help="Give the free space of a SQLite file back.",
    epilog=example("resurgam vacuum --store sqlite:///shop.db"),
)
@with_store
def vacuum_command(*, store: str, as_json: bool) -> None:
    """Rewrite a SQLite file without the free pages that purged workflows have left.

    Workers may have the file open, and their writes wait meanwhile; on a large file, choose a quiet time. It needs as
    much free disk space as the file is large.
    """
    check_file(store)
    done = vacuum(store)
    output.told(
        {"before": done.before, "after": done.after},
        f"the file had {_megabytes(done.before)} and has {_megabytes(done.after)} now: "
        f"{_megabytes(max(0, done.before - done.after))} given back",
        as_json=as_json,
    )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
