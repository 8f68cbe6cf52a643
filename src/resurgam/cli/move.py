"""The command that moves live runs to another store: `resurgam move`."""

import asyncio
import time
from typing import Final

import click

from resurgam.cli import output
from resurgam.cli.arguments import check_file, check_store, check_text, example, parse_seconds
from resurgam.cli.retention import executions_text
from resurgam.cli.text import one_line
from resurgam.core.errors import StoreError
from resurgam.core.flow_event import CATALOG
from resurgam.runtime.system import SystemClock
from resurgam.store.move import Move, Moved, Options, Progress
from resurgam.store.open import open_store, shown_url
from resurgam.store.protocol import Store
from resurgam.store.records import Query

_LEASE: Final = 10_000
_SHOWN: Final = 5
"""Workflows that were left behind and are named."""

_PAGE: Final = 500
"""Executions of the catalog that are looked for."""

_EVERY: Final = 1.0
"""Seconds between two lines of progress."""


@click.command(
    epilog=example("resurgam move --from sqlite:///shop.db --to postgresql://localhost/shop"),
)
@click.argument("ids", metavar="[ID]...", nargs=-1, callback=check_text)
@click.option("--from", "source", metavar="URL", required=True, callback=check_store, help="The store they are in.")
@click.option("--to", "target", metavar="URL", required=True, callback=check_store, help="The store they go to.")
@click.option("--closed", is_flag=True, help="Move closed workflows too.")
@click.option(
    "--wait",
    metavar="SECONDS",
    type=float,
    default=60.0,
    show_default=True,
    callback=parse_seconds,
    help="How long to wait for running activities.",
)
@click.option("--abort", is_flag=True, help="End an interrupted move: what has not arrived goes on where it was.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def move(
    *, ids: tuple[str, ...], source: str, target: str, closed: bool, wait: float, abort: bool, as_json: bool
) -> None:
    """Move all live workflows to another store, or those with these IDs and all that belongs to them.

    They are paused meanwhile, and go on in the other store exactly where they were. Workers of both stores may run. Their
    histories, promises and children move with them. If the command is interrupted, run it again: it finishes the move.
    Clients must use the other store from then on.
    """
    check_file(source, "--from")
    options = Options(entity_ids=frozenset(ids), closed=closed, patience=round(wait * 1000))
    try:
        moved, catalogs = asyncio.run(_run(source, target, options, _Printer(), abort=abort))
    except StoreError as error:
        message = f"{error}; if the move has begun, run the same command again to finish it"
        raise click.ClickException(one_line(message)) from error
    _report(moved, catalogs, source, target, as_json=as_json)


async def _run(source: str, target: str, options: Options, printer: "_Printer", *, abort: bool) -> tuple[Moved, int]:
    """Run the move; return what it has done, and how many of the executions that moved are those of the catalog."""
    clock = SystemClock()
    here = open_store(source, clock, name="move", lease=_LEASE)
    there = open_store(target, clock, name="move", lease=_LEASE)
    try:
        before = await _catalogs(here)
        course = Move(here, there, clock, url=shown_url(target), options=options, tell=printer.tell)
        moved = await (course.abort() if abort else course.run())
        return moved, len(before - await _catalogs(here))
    finally:
        await here.close()
        await there.close()


async def _catalogs(store: Store) -> frozenset[str]:
    """Return the executions of the catalog of steps, which moves as a workflow does."""
    page = await store.inspector.list(Query(kind=CATALOG, limit=_PAGE))
    return frozenset(one.execution_id for one in page.instances)


class _Printer:
    """Print progress to the standard error, not too often."""

    def __init__(self) -> None:
        self._last: tuple[str, float] = ("", 0.0)

    def tell(self, progress: Progress) -> None:
        """Print how far the move is."""
        step, printed_at = self._last
        now = time.monotonic()
        over = progress.done == progress.total
        if progress.total and (over or progress.step != step or now - printed_at >= _EVERY):
            self._last = (progress.step, now)
            click.echo(f"{progress.step} {progress.done:,} of {progress.total:,}", err=True)


def _report(moved: Moved, catalogs: int, source: str, target: str, *, as_json: bool) -> None:
    workflows, executions = moved.workflows - bool(catalogs), moved.executions - catalogs
    content = {
        "workflows": workflows,
        "executions": executions,
        "left": moved.left,
        "same_secret": moved.same_secret,
    }
    number = f"{workflows:,} workflow{'s' * (workflows != 1)} ({executions_text(executions)})"
    catalog = " and the catalog" if catalogs else ""
    text = f"moved {number}{catalog} from {shown_url(source)} to {shown_url(target)}"
    output.report(content, text, as_json=as_json)
    if not moved.same_secret:
        click.echo(
            "the stores have different secrets: promises that a retried workflow opens again get new ids, and a service "
            "that has accepted a call cannot answer it; it is called again at its deadline",
            err=True,
        )
    if moved.left:
        named = "; ".join(f"{name}: {reason}" for name, reason in list(moved.left.items())[:_SHOWN])
        more = f"; and {len(moved.left) - _SHOWN:,} more" if len(moved.left) > _SHOWN else ""
        raise click.ClickException(
            one_line(f"{len(moved.left):,} not moved, and all that was not goes on where it was: {named}{more}")
        )
