"""Print the output of commands: tables for people, JSON for programs."""

import shutil
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from resurgam.cli.text import one_line
from resurgam.client.describe import ParentCall
from resurgam.core.event import Parent
from resurgam.core.lifecycle import WORKFLOW
from resurgam.store.records import Arrival, Instance, Page

_LIST = ("ID", "NAME", "STATUS", "QUEUE", "CREATED", "CLOSED", "TAGS")
_STYLES = {"completed": "green", "failed": "red", "terminated": "red", "diverged": "red", "paused": "yellow"}
_DISPENSABLE = ("CLOSED", "QUEUE", "KIND", "TAGS")
"""Columns of a list that a narrow terminal leaves out, in this order."""

_SHORTEST_ID = 20
"""How many characters of an id a narrow terminal still shows."""


def document(content: object) -> None:
    """Print one JSON document."""
    click.echo(msgspec.json.encode(content))


def report(content: object, text: str, *, as_json: bool) -> None:
    """Print what a command did: a line for people, or a JSON document."""
    if as_json:
        document(content)
    else:
        click.echo(one_line(text))


def started(name: str, ids: Mapping[str, Any], *, attached: bool = False, err: bool) -> None:
    """Print the ids of a workflow that was started, or of an existing one that the start has *attached* to."""
    if attached:
        text = f"attached to {ids['entity_id']} (execution {ids['execution_id']})"
    else:
        text = f"started {name} as {ids['entity_id']} (run {ids['run_id']})"
    click.echo(one_line(text), err=err)


def exit_text(code: int) -> str:
    """Describe the exit code of a process, or the signal that ended it."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def page(found: Page, *, as_json: bool) -> None:
    """Print a page of workflows."""
    if as_json:
        document({"instances": [_instance(i) for i in found.instances], "cursor": found.cursor})
        return
    # The kind of each row is shown once the page has more than workflows.
    kinds = any(instance.kind != WORKFLOW for instance in found.instances)
    headings = (_LIST[0], "KIND", *_LIST[1:]) if kinds else _LIST
    rows = [[cut_middle(one_line(cell), width) for cell, width in _cells(i, kinds=kinds)] for i in found.instances]
    fitted_table(headings, rows)
    if found.cursor is not None:
        click.echo(f"there are more: --cursor {found.cursor}")


def _cells(instance: Instance, *, kinds: bool) -> list[tuple[str, int]]:
    """Return the cells of a row with their maximum widths, so that one long id does not widen every row."""
    dead = instance.dead_letter is not None or instance.activity_dead_letters
    remark = "dead letter" if dead else instance.failure
    status = f"{instance.status} ({remark})" if remark else str(instance.status)
    times = [(time_text(instance.created_at), 20), (time_text(instance.closed_at), 20)]
    return [
        (instance.entity_id, 40),
        *([(instance.kind, 20)] if kinds else []),
        (instance.name, 30),
        (status, 40),
        (instance.queue, 20),
        *times,
        (tags_text(instance.tags), 40),
    ]


def fitted_table(headings: Sequence[str], rows: list[list[str]], dispensable: Sequence[str] = _DISPENSABLE) -> None:
    """Print rows whose first column is an id; a narrow terminal shows them without the *dispensable* columns."""
    if sys.stdout.isatty():
        table(*_fitted(headings, rows, shutil.get_terminal_size().columns, dispensable))
    else:
        table(headings, rows)


def _fitted(
    headings: Sequence[str], rows: list[list[str]], width: int, dispensable: Sequence[str] = _DISPENSABLE
) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows that fit a terminal: without the least important columns, and with shorter ids."""
    columns = [[heading, *(row[number] for row in rows)] for number, heading in enumerate(headings)]
    shown = [column for column in columns if rows and any(column[1:])] or columns
    for heading in dispensable:
        if _room(shown, width) < 0:
            shown = [column for column in shown if column[0] != heading]
    widest = max(map(len, shown[0]))
    shown[0] = [cut_middle(cell, max(_SHORTEST_ID, widest + min(0, _room(shown, width, widest)))) for cell in shown[0]]
    return [column[0] for column in shown], [list(row) for row in zip(*(column[1:] for column in shown), strict=True)]


def _room(columns: list[list[str]], width: int, id_width: int = _SHORTEST_ID) -> int:
    """Return how many characters of a line are left beside ids of this width; negative if it does not fit."""
    return width - id_width - sum(max(map(len, column)) + 2 for column in columns[1:])


def cut_middle(text: str, width: int) -> str:
    """Return a text of at most *width* characters, cut in the middle."""
    if len(text) <= width:
        return text
    head = width // 2
    return f"{text[:head]}…{text[len(text) - (width - head - 1) :]}"


def call(parent: ParentCall | Parent | None) -> object:
    """Return the call that started a workflow, as values for JSON."""
    if parent is None:
        return None
    ids = {name: getattr(parent, name) for name in ("entity_id", "run_id", "execution_id")}
    return ids | {"location": str(parent.location)}


def lines(found: Iterable[str]) -> None:
    """Print JSON lines unchanged, for people and for programs."""
    for line in found:
        click.echo(line)


def imported(arrivals: Iterable[Arrival], *, as_json: bool) -> None:
    """Print the executions of an import: new ones, and those that the store already had."""
    if as_json:
        document({"imported": [_instance(a.instance) | {"new": a.new} for a in arrivals]})
        return
    for arrival in arrivals:
        found = arrival.instance
        what = f"{found.entity_id} (run {found.run_id}, {found.status}, {found.last_seq} entries)"
        click.echo(one_line(f"imported {what}" if arrival.new else f"{what} exists already; left unchanged"))


def _instance(instance: Instance) -> dict[str, object]:
    """Return the fields of an instance, with its times as `Description` has them."""
    fields = msgspec.structs.asdict(instance)
    moments = {name: moment(fields[name]) for name in ("created_at", "closed_at", "wake_at")}
    return fields | moments | {"parent": call(instance.parent)}


def moment(at: int | None) -> datetime | None:
    """Return a store timestamp as a time in UTC."""
    return None if at is None else datetime.fromtimestamp(at / 1000, UTC)


def time_text(at: int | None, precision: str = "seconds") -> str:
    """Return a store timestamp as text, in UTC."""
    found = moment(at)
    return "" if found is None else found.replace(tzinfo=None).isoformat(sep=" ", timespec=precision) + "Z"


def tags_text(tags: dict[str, str]) -> str:
    """Return tags as one line."""
    return " ".join(f"{key}={value}" for key, value in sorted(tags.items()))


def table(headings: Sequence[str] | None, rows: Iterable[Sequence[str]]) -> None:
    """Print rows in columns: with rich on a terminal, elsewhere as plain text."""
    cells = [[_cell(text) for text in row] for row in rows]
    if sys.stdout.isatty():
        _rich(headings, cells)
        return
    lines = [list(headings), *cells] if headings else cells
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for row in lines:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _cell(text: str) -> str:
    """Return a text as one line that keeps its indentation."""
    return " " * (len(text) - len(text.lstrip(" "))) + one_line(text)


def _styles(headings: Sequence[str] | None, row: Sequence[str]) -> list[str]:
    """Return the styles of a row's cells on a terminal: colours for statuses, bold for the labels of a page."""
    statuses = [_STYLES.get(cell.partition(" ")[0], "") for cell in row]
    if headings is None:
        return ["bold", statuses[1] if row[0] == "status" else ""]
    return [style if heading == "STATUS" else "" for heading, style in zip(headings, statuses, strict=True)]


def _rich(headings: Sequence[str] | None, cells: Iterable[Sequence[str]]) -> None:
    from rich.console import Console  # noqa: PLC0415 -- slow to import, and only needed on a terminal
    from rich.table import Table  # noqa: PLC0415 -- as above
    from rich.text import Text  # noqa: PLC0415 -- as above

    table = Table(box=None, show_header=headings is not None, header_style="bold", pad_edge=False)
    for heading in headings or ("", ""):
        table.add_column(heading, overflow="fold")
    for row in cells:
        table.add_row(*(Text(cell, style) for cell, style in zip(row, _styles(headings, row), strict=True)))
    Console(highlight=False).print(table)
