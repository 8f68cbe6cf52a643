"""The commands that send messages to workflows: `resurgam signal`, `query`, `update`, `resolve` and `reject`."""

from collections.abc import Awaitable
from typing import Any, TypeVar

import click

from resurgam import Engine
from resurgam.cli import output
from resurgam.cli.arguments import (
    call_engine,
    check_text,
    example,
    parse_arguments,
    parse_json,
    parse_seconds,
    with_store,
)
from resurgam.cli.text import one_line
from resurgam.core.codec import codec_for
from resurgam.core.errors import describe
from resurgam.errors import ResurgamError

T = TypeVar("T")


@click.command(
    epilog=example("resurgam signal o-1 approve true --store sqlite:///shop.db"),
)
@click.argument("id", callback=check_text)
@click.argument("name", callback=check_text)
@click.argument("value", metavar="[JSON]", required=False, callback=parse_json)
@click.option("--id", "signal_id", callback=check_text, help="The id of the signal; a second one with it is dropped.")
@with_store
def signal(*, store: str, as_json: bool, id: str, name: str, value: Any, signal_id: str | None) -> None:
    """Send the signal NAME to the workflow ID, with a JSON value or null."""
    call_engine(store, lambda engine: engine.handle(id).signal(name, value, id=signal_id))
    output.report({"entity_id": id, "signal": name}, f"sent signal {name!r} to {id}", as_json=as_json)


@click.command(
    epilog=example("resurgam query o-1 total --store sqlite:///shop.db"),
)
@click.argument("id", callback=check_text)
@click.argument("name", callback=check_text)
@click.argument("arguments", metavar="[JSON]", required=False, callback=parse_arguments)
@click.option("--timeout", type=float, metavar="SECONDS", default=30, show_default=True, callback=parse_seconds)
@with_store
def query(*, store: str, as_json: bool, id: str, name: str, arguments: list[Any], timeout: float) -> None:
    """Query the workflow ID and print the answer of its handler NAME, run by a worker that serves its queue.

    JSON is an array of its arguments, or one value as the only argument; write [[1, 2]] for a single list.
    """

    async def ask(engine: Engine) -> Any:
        return await _answer(f"query {name!r} of {id}", engine.handle(id).query(name, *arguments, timeout=timeout))

    _print_answer({"entity_id": id, "query": name}, "answer", call_engine(store, ask), as_json=as_json)


@click.command(
    epilog=example("resurgam update o-1 add '[{\"id\": 7}]' --store sqlite:///shop.db"),
)
@click.argument("id", callback=check_text)
@click.argument("name", callback=check_text)
@click.argument("arguments", metavar="[JSON]", required=False, callback=parse_arguments)
@click.option("--id", "update_id", callback=check_text, help="The id of the update; a second one with it does not run.")
@click.option("--timeout", type=float, metavar="SECONDS", callback=parse_seconds, help="The longest time to wait.")
@with_store
def update(  # each is an option of the command line
    *, store: str, as_json: bool, id: str, name: str, arguments: list[Any], update_id: str | None, timeout: float | None
) -> None:
    """Send the update NAME to the workflow ID, and print the result of its handler.

    JSON is an array of its arguments, or one value as the only argument; write [[1, 2]] for a single list.
    """

    async def send(engine: Engine) -> Any:
        sending = engine.handle(id).update(name, *arguments, id=update_id, timeout=timeout)
        return await _answer(f"update {name!r} of {id}", sending)

    _print_answer({"entity_id": id, "update": name}, "result", call_engine(store, send), as_json=as_json)


async def _answer(what: str, answering: Awaitable[T]) -> T:
    """Return the answer of a handler; turn an exception of the handler into a one-line error."""
    try:
        return await answering
    except (ResurgamError, click.ClickException):
        raise
    except Exception as error:  # the handler's own, of any type
        raise click.ClickException(one_line(f"{what} raised {describe(error)}")) from error


def _print_answer(content: dict[str, Any], field: str, answer: Any, *, as_json: bool) -> None:
    encoded = codec_for(Any).encode(answer)
    if as_json:
        output.document(content | {field: encoded})
    else:
        output.lines([bytes(encoded).decode()])


_workflow = click.option(
    "--workflow", metavar="ID", callback=check_text, help="Take the promise by its name in this workflow."
)


@click.command(
    epilog=example("resurgam resolve pay true --workflow o-1 --store sqlite:///shop.db"),
)
@click.argument("id", callback=check_text)
@click.argument("value", metavar="[JSON]", required=False, callback=parse_json)
@_workflow
@with_store
def resolve(*, store: str, as_json: bool, id: str, value: Any, workflow: str | None) -> None:
    """Resolve the promise ID with a JSON value or null. Only the first settlement counts."""

    def settle(engine: Engine) -> Awaitable[bool]:
        return engine.resolve(id, value) if workflow is None else engine.handle(workflow).resolve(id, value)

    _report_settled("resolved", id, workflow, call_engine(store, settle), as_json=as_json)


@click.command(
    epilog=example("resurgam reject pay 'card declined' --workflow o-1 --store sqlite:///shop.db"),
)
@click.argument("id", callback=check_text)
@click.argument("error", metavar="REASON", callback=check_text)
@_workflow
@with_store
def reject(*, store: str, as_json: bool, id: str, error: str, workflow: str | None) -> None:
    """Reject the promise ID with a REASON. Only the first settlement counts."""

    def settle(engine: Engine) -> Awaitable[bool]:
        return engine.reject(id, error) if workflow is None else engine.handle(workflow).reject(id, error)

    _report_settled("rejected", id, workflow, call_engine(store, settle), as_json=as_json)


def _report_settled(verb: str, id: str, workflow: str | None, first: bool, *, as_json: bool) -> None:  # noqa: FBT001 -- the answer of the engine
    text = f"{verb} promise {id}" if first else f"promise {id} was already settled; nothing was changed"
    output.report({"promise": id, "workflow": workflow, verb: first}, text, as_json=as_json)
