"""The commands that delete everything about one workflow, and list what was deleted: `resurgam delete`, `deletions`."""

import click
import msgspec

from resurgam import Engine
from resurgam.cli import output
from resurgam.cli.archive import archive_option
from resurgam.cli.arguments import call_engine, check_text, example, with_store
from resurgam.cli.retention import executions_text, is_terminal
from resurgam.cli.text import one_line
from resurgam.store.open import shown_url


@click.command("delete", epilog=example("resurgam delete customer-42 --tree --reason 'request 1234' --yes"))
@click.argument("entity_id", metavar="ID", callback=check_text)
@click.option("--tree", is_flag=True, help="Delete its descendants too: children, and theirs, except detached ones.")
@click.option("--reason", default="", help="Why; it is recorded.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@archive_option
@with_store
def delete_command(
    *, store: str, as_json: bool, entity_id: str, tree: bool, reason: str, yes: bool, archive: str | None
) -> None:
    """Delete everything about the workflow or flow ID: all its executions, open ones too, with their histories.

    An open execution is terminated first, and a parent that waits for it gets a failure. A worker that runs one of its
    activities cannot record the result. What other histories say about it stays: the history of a parent holds the result
    of its child. Results that memoized steps share are kept by their inputs, not by workflow, and stay until they expire.

    All archives that the store has written are searched too. If one of them has moved, give its new place by --archive; if one
    is not there, nothing is deleted.

    The request and its end are recorded with ID, reason and user: resurgam deletions lists them. If the command is killed,
    call it again.
    """
    if not yes:
        _confirm(store, entity_id, tree=tree, as_json=as_json)
    removed, archived = call_engine(
        store, lambda engine: _delete(engine, entity_id, reason, tree=tree), archive=archive
    )
    below = " and its descendants" if tree else ""
    there = f" ({archived:,} in the archive)" if archived else ""
    output.report(
        {"entity_id": entity_id, "executions": removed, "archived": archived, "tree": tree},
        f"deleted {executions_text(removed)} of {entity_id}{below}{there}",
        as_json=as_json,
    )


async def _delete(engine: Engine, entity_id: str, reason: str, *, tree: bool) -> tuple[int, int]:
    """Delete everything about an entity; return how many executions it had, and how many of them were archived."""
    removed = await engine.delete(entity_id, reason=reason, tree=tree)
    recorded = [one for one in await engine.deletions() if one.entity_id == entity_id]
    return removed, recorded[-1].archived if recorded else 0


def _confirm(store: str, entity_id: str, *, tree: bool, as_json: bool) -> None:
    if as_json or not is_terminal():
        raise click.UsageError("delete needs a confirmation; give --yes to confirm")
    below = " and its descendants" if tree else ""
    click.confirm(
        one_line(f"Delete everything about {entity_id}{below} from {shown_url(store)}?"), abort=True, err=True
    )


@click.command("deletions", epilog=example("resurgam deletions --store sqlite:///shop.db"))
@with_store
def deletions_command(*, store: str, as_json: bool) -> None:
    """List what was deleted, in the order of the requests. One without an end was interrupted: delete that ID again."""
    found = call_engine(store, lambda engine: engine.deletions())
    if as_json:
        moments = ("requested_at", "deleted_at")
        shown = [msgspec.structs.asdict(one) | {at: output.moment(getattr(one, at)) for at in moments} for one in found]
        output.document({"deletions": shown})
        return
    rows = [
        (
            output.time_text(one.requested_at),
            output.time_text(one.deleted_at) or "interrupted",
            one.entity_id + " (tree)" * one.tree,
            str(one.executions),
            str(one.archived),
            one.by,
            one.reason,
        )
        for one in found
    ]
    output.table(("REQUESTED", "DELETED", "ID", "EXECUTIONS", "ARCHIVED", "BY", "REASON"), rows)
