"""The commands that move workflows between stores: `resurgam export` and `import`."""

from pathlib import Path
from typing import BinaryIO

import click

from resurgam.cli import output
from resurgam.cli.arguments import call_engine, check_text, example, with_store
from resurgam.cli.text import one_line
from resurgam.errors import SerializationError


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
@click.argument("file", type=click.File("rb"))
@with_store
def import_(*, store: str, as_json: bool, file: BinaryIO) -> None:
    """Import workflows from FILE, written by export (- is the standard input), each whole or not at all.

    They go on in this store exactly where they were. Executions that the store already has are left unchanged.
    """
    name, content = getattr(file, "name", "-"), file.read()
    try:
        arrivals = call_engine(store, lambda engine: engine.import_(content.decode()), create=True)
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise SerializationError(f"{name}, line {number}", "not UTF-8; import the file as export wrote it") from error
    except SerializationError as error:
        raise SerializationError(f"{name}, {error.path}", error.reason) from error
    output.imported(arrivals, as_json=as_json)
