"""The commands `resurgam keys`: the keys of the HTTP API."""

from typing import TYPE_CHECKING, Any

import click

from resurgam import Engine
from resurgam.cli import output
from resurgam.cli.arguments import call_engine, check_text, example, with_store
from resurgam.cli.process import web_needed
from resurgam.cli.text import one_line
from resurgam.runtime.system import SystemClock

if TYPE_CHECKING:
    from resurgam.web.keys import KeyRecord

_ROLES = ("read", "operate", "admin")
_LIST = ("NUMBER", "NAME", "ROLE", "CREATED", "REVOKED")


@click.group()
def keys() -> None:
    """Create, list and revoke the keys of the HTTP API.

    \b
    Example: resurgam keys list --store sqlite:///shop.db
    """  # noqa: D301 -- \b tells click not to wrap a paragraph


@keys.command(epilog=example("resurgam keys create nightly-report --role read --store sqlite:///shop.db"))
@click.argument("name", callback=check_text)
@click.option(
    "--role",
    type=click.Choice(_ROLES),
    required=True,
    help="read sees, operate starts and controls workflows and flows, admin also changes steps.",
)
@with_store
def create(*, store: str, as_json: bool, name: str, role: str) -> None:
    """Create a key with a NAME that says who has it, and print it.

    It is printed once: the store has only its hash. Send it as the header Authorization: Bearer KEY.
    """
    with web_needed():
        from resurgam.web.access import Role  # noqa: PLC0415 -- its libraries may be missing
        from resurgam.web.keys import Keys  # noqa: PLC0415 -- as above

    async def make(engine: Engine) -> tuple[int, str]:
        return await Keys(engine.store.values).create(name, Role(role), SystemClock().now())

    number, key = call_engine(store, make, create=True)
    if as_json:
        output.document({"number": number, "name": name, "role": role, "key": key})
        return
    click.echo(key)
    click.echo(one_line(f"key {number} of {name} ({role}); it is not shown again"), err=True)


@keys.command("list", epilog=example("resurgam keys list --store sqlite:///shop.db"))
@with_store
def list_(*, store: str, as_json: bool) -> None:
    """List the keys, revoked ones too."""
    with web_needed():
        from resurgam.web.keys import Keys  # noqa: PLC0415 -- its libraries may be missing

    async def read(engine: Engine) -> "list[tuple[int, KeyRecord]]":
        return [found async for found in Keys(engine.store.values).list()]

    found = call_engine(store, read)
    if as_json:
        output.document({"keys": [_document(number, record) for number, record in found]})
        return
    rows = [
        (str(number), record.name, str(record.role), *map(output.time_text, (record.created_at, record.revoked_at)))
        for number, record in found
    ]
    output.table(_LIST, rows)


@keys.command(epilog=example("resurgam keys revoke 2 --store sqlite:///shop.db"))
@click.argument("number", type=click.IntRange(1))
@with_store
def revoke(*, store: str, as_json: bool, number: int) -> None:
    """Revoke the key NUMBER; servers refuse it within two seconds."""
    with web_needed():
        from resurgam.web.keys import Keys  # noqa: PLC0415 -- its libraries may be missing

    async def end(engine: Engine) -> "KeyRecord":
        return await Keys(engine.store.values).revoke(number, SystemClock().now())

    record = call_engine(store, end)
    text = f"revoked key {number} of {record.name}; servers refuse it within two seconds"
    output.report(_document(number, record), text, as_json=as_json)


def _document(number: int, record: "KeyRecord") -> dict[str, Any]:
    """Return what may be seen of a key."""
    times = {"created_at": output.moment(record.created_at), "revoked_at": output.moment(record.revoked_at)}
    return {"number": number, "name": record.name, "role": record.role, **times}
