"""The commands that tell workflows something: each parses, calls the engine, and prints what it says."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from resurgam import Engine, Status
from resurgam.cli import output
from resurgam.cli.arguments import ask, example, read_arguments, read_json, read_seconds, text, with_store
from resurgam.client.describe import Description
from resurgam.core.codec import codec_for
from resurgam.core.errors import describe
from resurgam.errors import ResurgamError

T = TypeVar("T")


@click.command(epilog=example("resurgam signal o-1 approve true --store sqlite:///shop.db"))
@click.argument("id", callback=text)
@click.argument("name", callback=text)
@click.argument("value", metavar="[JSON]", required=False, callback=read_json)
@click.option("--id", "signal_id", callback=text, help="Its own id; the same one sent twice counts once.")
@with_store
def signal(*, store: str, as_json: bool, id: str, name: str, value: Any, signal_id: str | None) -> None:
    """Send the signal NAME to the workflow ID, with a value or null."""
    ask(store, lambda engine: engine.handle(id).signal(name, value, id=signal_id))
    output.told({"entity_id": id, "signal": name}, f"sent signal {name!r} to {id}", as_json=as_json)


@click.command(epilog=example("resurgam cancel o-1 --reason 'out of stock' --store sqlite:///shop.db"))
@click.argument("id", callback=text)
@click.option("--reason", callback=text, help="Recorded in its history.")
@with_store
def cancel(*, store: str, as_json: bool, id: str, reason: str | None) -> None:
    """Ask the workflow ID to stop; its code may clean up first."""
    ask(store, lambda engine: engine.handle(id).cancel(reason or ""))
    output.told({"entity_id": id, "cancel": reason or ""}, f"asked {id} to stop", as_json=as_json)


@click.command(
    short_help="End the workflow ID at once, without clean-up.",
    epilog=example("resurgam terminate o-1 --reason 'sent by mistake' --store sqlite:///shop.db"),
)
@click.argument("id", callback=text)
@click.option("--reason", callback=text, help="Recorded in its history.")
@with_store
def terminate(*, store: str, as_json: bool, id: str, reason: str | None) -> None:
    """End the workflow ID at once; its code is not asked, and nothing is cleaned up."""
    ask(store, lambda engine: engine.handle(id).terminate(reason or ""))
    output.told({"entity_id": id, "terminate": reason or ""}, f"terminated {id}", as_json=as_json)


@click.command(
    short_help="Try the workflow ID again.",
    epilog=example("resurgam retry o-1 --store sqlite:///shop.db"),
)
@click.argument("id", callback=text)
@with_store
def retry(*, store: str, as_json: bool, id: str) -> None:
    """Try the workflow ID again: a failed one by its next attempt, others by what was put aside or is parked."""

    async def again(engine: Engine) -> tuple[int, Description, Description]:
        handle = engine.handle(id)
        return await _between(handle.describe, handle.retry)

    count, before, after = ask(store, again)
    content = {"entity_id": id, "revived": count, "attempt": after.attempt, "execution_id": after.execution_id}
    begun = f"attempt {after.attempt} of {id} begins (execution {after.execution_id})"
    output.told(content, begun if before.status is Status.FAILED else f"revived {count} of {id}", as_json=as_json)


async def _between(
    look: Callable[[], Awaitable[Description]], act: Callable[[], Awaitable[T]]
) -> tuple[T, Description, Description]:
    before = await look()
    return await act(), before, await look()


@click.command(
    short_help="Halt the workflow ID until it is resumed.",
    epilog=example("resurgam pause o-1 --tree --store sqlite:///shop.db"),
)
@click.argument("id", callback=text)
@click.option("--tree", is_flag=True, help="Also what hangs below it, and what it begins meanwhile.")
@click.option("--reason", callback=text, help="Recorded in its history.")
@with_store
def pause(*, store: str, as_json: bool, id: str, tree: bool, reason: str | None) -> None:
    """Halt the workflow ID where it is, until it is resumed; activities that run come to their end."""
    ask(store, lambda engine: engine.handle(id).pause(tree=tree, reason=reason or ""))
    said = f"paused {id}" + (" and what hangs below it" if tree else "")
    output.told({"entity_id": id, "paused": "tree" if tree else "alone"}, said, as_json=as_json)


@click.command(
    short_help="Let the paused workflow ID go on.",
    epilog=example("resurgam resume o-1 --store sqlite:///shop.db"),
)
@click.argument("id", callback=text)
@with_store
def resume(*, store: str, as_json: bool, id: str) -> None:
    """Let the paused workflow ID go on, and what was paused with it."""
    ask(store, lambda engine: engine.handle(id).resume())
    output.told({"entity_id": id, "resumed": True}, f"resumed {id}", as_json=as_json)


@click.command(
    short_help="Begin the scheduled workflow ID now.",
    epilog=example("resurgam begin o-1 --store sqlite:///shop.db"),
)
@click.argument("id", callback=text)
@with_store
def begin(*, store: str, as_json: bool, id: str) -> None:
    """Begin the scheduled workflow ID, one that is delayed or deferred, now."""
    ask(store, lambda engine: engine.handle(id).begin())
    output.told({"entity_id": id, "begun": True}, f"began {id}", as_json=as_json)


@click.command(
    short_help="Ask the workflow ID a question.",
    epilog=example("resurgam query o-1 total --store sqlite:///shop.db"),
)
@click.argument("id", callback=text)
@click.argument("name", callback=text)
@click.argument("arguments", metavar="[JSON]", required=False, callback=read_arguments)
@click.option("--timeout", type=float, metavar="SECONDS", default=30, show_default=True, callback=read_seconds)
@with_store
def query(*, store: str, as_json: bool, id: str, name: str, arguments: list[Any], timeout: float) -> None:
    """Print what the workflow ID answers to the query NAME; a worker that serves its queue answers.

    JSON is an array of its arguments, or one value as the only argument; write [[1, 2]] for a single list.
    """

    async def question(engine: Engine) -> Any:
        return await _heard(f"query {name!r} of {id}", engine.handle(id).query(name, *arguments, timeout=timeout))

    _answered({"entity_id": id, "query": name}, "answer", ask(store, question), as_json=as_json)


@click.command(
    short_help="Have the workflow ID do the update NAME.",
    epilog=example("resurgam update o-1 add '[{\"id\": 7}]' --store sqlite:///shop.db"),
)
@click.argument("id", callback=text)
@click.argument("name", callback=text)
@click.argument("arguments", metavar="[JSON]", required=False, callback=read_arguments)
@click.option("--id", "update_id", callback=text, help="Its own id; the same one sent twice is done once.")
@click.option("--timeout", type=float, metavar="SECONDS", callback=read_seconds, help="How long to wait at most.")
@with_store
def update(  # each is an option of the command line
    *, store: str, as_json: bool, id: str, name: str, arguments: list[Any], update_id: str | None, timeout: float | None
) -> None:
    """Have the workflow ID do the update NAME, and print what its handler returns.

    JSON is an array of its arguments, or one value as the only argument; write [[1, 2]] for a single list.
    """

    async def tell(engine: Engine) -> Any:
        told = engine.handle(id).update(name, *arguments, id=update_id, timeout=timeout)
        return await _heard(f"update {name!r} of {id}", told)

    _answered({"entity_id": id, "update": name}, "result", ask(store, tell), as_json=as_json)


async def _heard(what: str, answering: Awaitable[T]) -> T:
    """Return what a handler answers; what it raises is one line, as any error."""
    try:
        return await answering
    except (ResurgamError, click.ClickException):
        raise
    except Exception as error:  # it is the user's own, and may be anything
        raise click.ClickException(output.one_line(f"{what} raised {describe(error)}")) from error


def _answered(content: dict[str, Any], field: str, answer: Any, *, as_json: bool) -> None:
    written = codec_for(Any).encode(answer)
    if as_json:
        output.document(content | {field: written})
    else:
        output.lines([bytes(written).decode()])


_workflow = click.option(
    "--workflow", metavar="ID", callback=text, help="ID is then the name of a promise of this one."
)


@click.command(
    short_help="Give the promise ID its value.",
    epilog=example("resurgam resolve pay true --workflow o-1 --store sqlite:///shop.db"),
)
@click.argument("id", callback=text)
@click.argument("value", metavar="[JSON]", required=False, callback=read_json)
@_workflow
@with_store
def resolve(*, store: str, as_json: bool, id: str, value: Any, workflow: str | None) -> None:
    """Give the promise ID its value, or null; the first settlement counts."""

    def settle(engine: Engine) -> Awaitable[bool]:
        return engine.resolve(id, value) if workflow is None else engine.handle(workflow).resolve(id, value)

    _settled("resolved", id, workflow, ask(store, settle), as_json=as_json)


@click.command(
    short_help="Say that the promise ID gets no value.",
    epilog=example("resurgam reject pay 'card declined' --workflow o-1 --store sqlite:///shop.db"),
)
@click.argument("id", callback=text)
@click.argument("error", metavar="REASON", callback=text)
@_workflow
@with_store
def reject(*, store: str, as_json: bool, id: str, error: str, workflow: str | None) -> None:
    """Say that the promise ID gets no value, and for what REASON; the first settlement counts."""

    def settle(engine: Engine) -> Awaitable[bool]:
        return engine.reject(id, error) if workflow is None else engine.handle(workflow).reject(id, error)

    _settled("rejected", id, workflow, ask(store, settle), as_json=as_json)


def _settled(how: str, id: str, workflow: str | None, first: bool, *, as_json: bool) -> None:  # noqa: FBT001 -- what came of it
    said = f"{how} promise {id}" if first else f"promise {id} was settled already; nothing was changed"
    output.told({"promise": id, "workflow": workflow, how: first}, said, as_json=as_json)
