"""The commands `resurgam step`: the catalog of a store."""

from collections.abc import Awaitable, Callable, Sequence

import click

from resurgam import Engine, Registry
from resurgam.cli import output
from resurgam.cli.arguments import call_engine, check_text, example, with_store
from resurgam.cli.definitions import read_steps
from resurgam.cli.text import one_line
from resurgam.errors import AlreadyExists
from resurgam.flows.model import OptionalConfig, Step


@click.group()
def step() -> None:
    """Register, update, list and remove the steps of goal flows.

    \b
    Example: resurgam step list --store sqlite:///shop.db
    """  # noqa: D301 -- \b tells click not to wrap a paragraph


@step.command(epilog=example("resurgam step register steps.json shop.py --store sqlite:///shop.db"))
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True, callback=check_text)
@with_store
def register(*, store: str, as_json: bool, sources: tuple[str, ...]) -> None:
    """Register steps in the catalog.

    SOURCE is a JSON file (one definition, or a list of them), or a module with @step, as shop.py or shop.orders. A step
    that is there already, and is the same, stays. Each is registered by itself: an error names the one that was refused,
    and those before it are registered.
    """
    _change(store, sources, _register, ("registered", "is registered already"), as_json=as_json)


@step.command(epilog=example("resurgam step update steps.json --store sqlite:///shop.db"))
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True, callback=check_text)
@with_store
def update(*, store: str, as_json: bool, sources: tuple[str, ...]) -> None:
    """Replace the definitions of registered steps.

    Flows that have started keep the ones they were planned with. SOURCE is a JSON file (one definition, or a list of
    them), or a module with @step, as shop.py or shop.orders.
    """
    _change(store, sources, Engine.update_step, ("updated", "is unchanged"), as_json=as_json)


async def _register(engine: Engine, one: Step) -> bool:
    try:
        return await engine.register_step(one)
    except AlreadyExists as error:
        raise click.ClickException(one_line(f"{error}; resurgam step update replaces it")) from error


def _change(
    store: str,
    sources: Sequence[str],
    change: Callable[[Engine, Step], Awaitable[bool]],
    texts: tuple[str, str],
    *,
    as_json: bool,
) -> None:
    steps = read_steps(sources)

    async def change_all(engine: Engine) -> dict[str, bool]:
        changed: dict[str, bool] = {}
        for one in steps:
            changed[one.id] = await change(engine, one)
            if not as_json:
                click.echo(one_line(f"{texts[0]} {one.id}" if changed[one.id] else f"{one.id} {texts[1]}"))
        return changed

    # An empty registry: the engine itself registers the steps of its own, and nothing else would be left to report.
    changed = call_engine(store, change_all, create=True, registry=Registry())
    if as_json:
        output.document([{"id": step_id, "changed": yes} for step_id, yes in changed.items()])


@step.command("list", epilog=example("resurgam step list --json --store sqlite:///shop.db > steps.json"))
@with_store
def list_(*, store: str, as_json: bool) -> None:
    """List the steps of the catalog.

    TAKES are the inputs of a step, optional ones with a question mark; PROVIDES are its outputs. With --json the whole
    definitions are printed, as resurgam step register reads them.
    """
    steps = call_engine(store, lambda engine: engine.steps(), registry=Registry())
    if as_json:
        output.document({"steps": steps, "count": len(steps)})
        return
    output.table(("ID", "TYPE", "TAKES", "PROVIDES", "NAME"), [_row(one) for one in steps])


def _row(one: Step) -> list[str]:
    takes = [f"{name}{'?' if isinstance(config, OptionalConfig) else ''}" for name, config in one.inputs.items()]
    return [one.id, one.type, ", ".join(takes), ", ".join(one.outputs), one.name]


@step.command(epilog=example("resurgam step remove total --store sqlite:///shop.db"))
@click.argument("ids", metavar="ID...", nargs=-1, required=True, callback=check_text)
@with_store
def remove(*, store: str, as_json: bool, ids: tuple[str, ...]) -> None:
    """Remove steps from the catalog.

    Flows that have started keep them; steps that need their outputs stay.
    """

    async def remove_all(engine: Engine) -> None:
        for step_id in ids:
            await engine.remove_step(step_id)
            if not as_json:
                click.echo(one_line(f"removed {step_id}"))

    call_engine(store, remove_all, registry=Registry())
    if as_json:
        output.document({"removed": ids})
