"""The commands that remove workflows and free their disk space: `resurgam purge` and `vacuum`; and `--retain`."""

import sys
from datetime import datetime
from typing import Final

import click

from resurgam import Engine, Retain, Status
from resurgam.cli import output
from resurgam.cli.arguments import call_engine, check_file, check_text, example, parse_age, parse_moment, with_store
from resurgam.cli.text import one_line
from resurgam.core.retry import milliseconds
from resurgam.store.open import shown_url, vacuum
from resurgam.store.records import EndedQuery
from resurgam.store.retention import Batch, purge_all
from resurgam.store.retention_rules import CLOSED, rules_of

_BATCH: Final = 100
"""How many executions one transaction removes."""

_PROGRESS_EVERY: Final = 1000
"""After how many executions a long purge prints its progress."""

_DEAD: Final = "dead"
_FOREVER: Final = "forever"


def _parse_rules(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[Retain, ...]:
    check_text(context, parameter, values)
    try:
        return rules_of([_rule(context, parameter, value) for value in values])
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from error


def _rule(context: click.Context, parameter: click.Parameter, value: str) -> Retain:
    covered, equals, text = value.rpartition("=")
    age = None if text == _FOREVER else parse_age(context, parameter, text)
    if covered == _DEAD:
        return Retain(age, dead_letters=True)
    name, colon, status = covered.rpartition(":") if ":" in covered else (covered, "", "")
    if (equals and not covered) or (colon and not (name or status)):
        raise ValueError(f"{value!r} must be AGE, NAME=AGE, NAME:STATUS=AGE, :STATUS=AGE or {_DEAD}=AGE")
    if not colon and name in tuple(Status):
        raise ValueError(
            f"{value!r} is about a workflow called {name}; write :{value} for the status, or {name}:={text} for the workflow"
        )
    return Retain(age, name or None, status or None)


def rule_text(rule: Retain) -> str:
    """Return a rule as ``--retain`` takes it."""
    age = _FOREVER if rule.age is None else f"{milliseconds(rule.age) / 1000:f}s"
    if rule.dead_letters:
        return f"{_DEAD}={age}"
    covered = f"{rule.name or ''}:{rule.status or ''}"
    return age if covered == ":" else f"{covered}={age}"


retain_option = click.option(
    "--retain",
    metavar="[[NAME][:STATUS]=]AGE",
    multiple=True,
    callback=_parse_rules,
    help="Remove workflows that closed this long ago: 12h, 30d, 4w; or forever. Repeatable: ping=1d, ping:failed=90d, "
    ":failed=365d; the most specific one decides. dead=30d terminates dead letters without progress for so long.",
)


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
@click.option("--status", type=click.Choice([status.value for status in CLOSED]), help="Only workflows in this status.")
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
        f"{what} {executions_text(done.removed)} that closed before {before.isoformat(sep=' ', timespec='seconds')}{kept}",
        as_json=as_json,
    )


def _confirm(store: str, query: EndedQuery, *, as_json: bool) -> None:
    if as_json or not is_terminal():
        raise click.UsageError("purge needs a confirmation; give --yes to confirm, or --dry-run to count only")
    found = call_engine(store, lambda engine: _purge(engine, query, dry_run=True))
    if found.removed:
        click.confirm(
            one_line(f"Remove {executions_text(found.removed)} from {shown_url(store)}?"), abort=True, err=True
        )


def is_terminal() -> bool:
    """Whether a person can be asked."""
    return sys.stdin.isatty()


async def _purge(engine: Engine, query: EndedQuery, *, dry_run: bool) -> Batch:
    removed = kept = printed = 0
    async for batch in purge_all(engine.store, query, dry_run=dry_run):
        removed, kept = removed + batch.removed, kept + batch.kept
        if removed - printed >= _PROGRESS_EVERY:
            printed = removed
            click.echo(f"{removed:,} {'found' if dry_run else 'removed'} so far", err=True)
    return Batch(removed, kept)


def executions_text(number: int) -> str:
    """Return a number of executions as text."""
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
