"""The commands that move workflows between stores: `resurgam export` and `import`."""

from pathlib import Path
from typing import BinaryIO

import click

from resurgam import Engine
from resurgam.archive.document import MAGIC, text_of
from resurgam.cli import output
from resurgam.cli.archive import archive_option, archived_lines, check_archived
from resurgam.cli.arguments import call_engine, check_text, example, with_store
from resurgam.cli.text import one_line
from resurgam.errors import SerializationError
from resurgam.store.lock import archive_lock
from resurgam.store.records import Arrival


@click.command(
    epilog=example("resurgam export o-1 --output o-1.jsonl --store sqlite:///shop.db"),
)
@click.argument("id", callback=check_text)
@click.option("--run", metavar="RUN", callback=check_text, help="Only the executions of this run.")
@click.option(
    "--output", "file", metavar="FILE", callback=check_text, help="Write to a file, not to the standard output."
)
@with_store
def export(*, store: str, as_json: bool, id: str, run: str | None, file: str | None) -> None:
    """Export all stored data of the workflow ID as JSON lines, for import into another store.

    The workflow itself goes on in this store: stop its workers before, or terminate it afterwards.
    """
    lines = call_engine(store, lambda engine: engine.export(id, run))
    if file is None or file == "-":
        output.lines(lines)
        return
    try:
        Path(file).write_text("".join(f"{line}\n" for line in lines), "utf-8", newline="\n")
    except OSError as error:
        message = f"{file} cannot be written: {error.strerror}; choose another --output"
        raise click.ClickException(one_line(message)) from error
    content = {"entity_id": id, "output": file, "lines": len(lines)}
    output.report(content, f"exported {id} to {file} ({len(lines)} lines)", as_json=as_json)


@click.command(
    "import",
    epilog=example("resurgam import o-1.jsonl --store sqlite:///other.db"),
)
@click.argument("file", type=click.File("rb"), metavar="FILE", required=False)
@click.option(
    "--archived", metavar="ID", callback=check_text, help="Import the file of the archive that holds this id."
)
@archive_option
@with_store
def import_(*, store: str, as_json: bool, file: BinaryIO | None, archived: str | None, archive: str | None) -> None:
    """Import workflows from FILE, written by export (- is the standard input), each whole or not at all.

    They go on in this store exactly where they were. Executions that the store already has are left unchanged, but those
    that are archived get back their histories: FILE may be one of an archive, with a whole tree.
    """
    check_archived(archived)
    if (file is None) == (archived is None):
        raise click.UsageError("give FILE, or --archived ID")
    if archived is not None:
        output.imported(call_engine(store, lambda engine: _restore(engine, archived, archive)), as_json=as_json)
        return
    assert file is not None
    name, content = getattr(file, "name", "-"), file.read()
    if content.startswith(MAGIC):
        content = text_of(content, name).encode()
    try:
        arrivals = call_engine(store, lambda engine: engine.import_(content.decode()), create=True)
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise SerializationError(f"{name}, line {number}", "not UTF-8; import the file as export wrote it") from error
    except SerializationError as error:
        raise SerializationError(f"{name}, {error.path}", error.reason) from error
    output.imported(arrivals, as_json=as_json)


async def _restore(engine: Engine, id: str, archive: str | None) -> list[Arrival]:
    """Import the files of an archive that hold a workflow."""
    arrivals: list[Arrival] = []
    async with archive_lock(engine.store.values, engine.clock).taken():  # a deletion that is under way comes first
        for lines in await archived_lines(engine, id, archive=archive, whole=True):
            arrivals += await engine.import_(lines)
    return arrivals
