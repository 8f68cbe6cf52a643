"""The commands that control workflows: `resurgam cancel`, `terminate`, `pause`, `resume`, `begin` and `retry`."""

import click

from resurgam import Engine, Status
from resurgam.cli import output
from resurgam.cli.arguments import call_engine, check_text, example, with_store
from resurgam.client.describe import Description


@click.command(
    epilog=example("resurgam cancel o-1 --reason 'out of stock' --store sqlite:///shop.db"),
)
@click.argument("id", callback=check_text)
@click.option("--reason", callback=check_text, help="Recorded in its history.")
@with_store
def cancel(*, store: str, as_json: bool, id: str, reason: str | None) -> None:
    """Cancel the workflow ID. Its code gets CancelledError and may clean up first."""
    call_engine(store, lambda engine: engine.handle(id).cancel(reason or ""))
    output.report({"entity_id": id, "cancel": reason or ""}, f"requested cancellation of {id}", as_json=as_json)


@click.command(
    epilog=example("resurgam terminate o-1 --reason 'sent by mistake' --store sqlite:///shop.db"),
)
@click.argument("id", callback=check_text)
@click.option("--reason", callback=check_text, help="Recorded in its history.")
@with_store
def terminate(*, store: str, as_json: bool, id: str, reason: str | None) -> None:
    """Terminate the workflow ID at once. Its code does not run again, and nothing is cleaned up."""
    call_engine(store, lambda engine: engine.handle(id).terminate(reason or ""))
    output.report({"entity_id": id, "terminate": reason or ""}, f"terminated {id}", as_json=as_json)


@click.command(
    epilog=example("resurgam pause o-1 --tree --reason 'stocktaking' --store sqlite:///shop.db"),
)
@click.argument("id", callback=check_text)
@click.option("--tree", is_flag=True, help="Pause its open descendants too, and children that it starts meanwhile.")
@click.option("--reason", callback=check_text, help="Recorded in its history.")
@with_store
def pause(*, store: str, as_json: bool, id: str, tree: bool, reason: str | None) -> None:
    """Pause the workflow ID until it is resumed. Activities that run are finished."""
    call_engine(store, lambda engine: engine.handle(id).pause(tree=tree, reason=reason or ""))
    text = f"paused {id}" + (" and its descendants" if tree else "")
    output.report({"entity_id": id, "paused": "tree" if tree else "alone"}, text, as_json=as_json)


@click.command(
    epilog=example("resurgam resume o-1 --store sqlite:///shop.db"),
)
@click.argument("id", callback=check_text)
@with_store
def resume(*, store: str, as_json: bool, id: str) -> None:
    """Resume the paused workflow ID, and the descendants that were paused with it."""
    call_engine(store, lambda engine: engine.handle(id).resume())
    output.report({"entity_id": id, "resumed": True}, f"resumed {id}", as_json=as_json)


@click.command(
    epilog=example("resurgam begin o-1 --store sqlite:///shop.db"),
)
@click.argument("id", callback=check_text)
@with_store
def begin(*, store: str, as_json: bool, id: str) -> None:
    """Begin the scheduled workflow ID (delayed or deferred) now."""
    call_engine(store, lambda engine: engine.handle(id).begin())
    output.report({"entity_id": id, "begun": True}, f"began {id}", as_json=as_json)


@click.command(
    epilog=example("resurgam retry o-1 --store sqlite:///shop.db"),
)
@click.argument("id", callback=check_text)
@with_store
def retry(*, store: str, as_json: bool, id: str) -> None:
    """Retry the workflow ID: start the next attempt of a failed run, or revive its dead letters and parked runs."""

    async def again(engine: Engine) -> tuple[Description, int, Description]:
        handle = engine.handle(id)
        return await handle.describe(), await handle.retry(), await handle.describe()

    before, count, after = call_engine(store, again)
    content = {"entity_id": id, "revived": count, "attempt": after.attempt, "execution_id": after.execution_id}
    started = f"started attempt {after.attempt} of {id} (execution {after.execution_id})"
    output.report(content, started if before.status is Status.FAILED else f"revived {count} of {id}", as_json=as_json)
