"""Print a history: a table for people, JSON lines for programs."""

import shutil
import sys
from collections.abc import Collection, Sequence
from typing import Final

import click
import msgspec

from resurgam.cli import output
from resurgam.cli.text import one_line
from resurgam.core import event as events
from resurgam.core.event import Event, Failure
from resurgam.core.flow_event import FlowStarted
from resurgam.core.location import ROOT, Location

_HEADINGS: Final = ("SEQ", "TIME", "TYPE", "LOCATION", "NAME", "VALUE")
_VALUES: Final = (
    *("input", "result", "value", "failure", "diagnosis", "reason", "names", "signals", "winner", "size", "answer"),
    *("removed", "state", "iteration", "inputs", "outputs", "status"),
)
_IDS: Final = {
    "tags_set": "tags",
    "workflow_archiving": "archiver",
    "flow_archiving": "archiver",
    "child_scheduled": "entity_id",
    "child_started": "execution_id",
    "flow_scheduled": "entity_id",
    "promise_created": "promise_id",
    "signal_sent": "entity_id",
    "workflow_continued": "run_id",
    "saga_step_registered": "undo",
    "saga_closed": "outcome",
}
"""The field to show of these events instead of a value: the target or the outcome."""

_MOMENTS: Final = ("deadline", "next_at", "next_retry_at")
_WIDEST: Final = 60
"""How many characters of a value a table shows; ``--json`` has all of it."""

_NARROWEST: Final = 12
"""How many characters of a name or a value a narrow terminal still shows."""


def show(entries: Sequence[Event], active: Collection[int] | None, *, as_json: bool) -> None:
    """Print entries; with the numbers of the *active* ones, also whether each is active or forgotten."""
    if as_json:
        for entry in entries:
            _print(entry, active)
        return
    headings = [*_HEADINGS, *(() if active is None else ("KEPT",))]
    rows = [_row(entry, active) for entry in entries]
    if sys.stdout.isatty():
        rows = fitted(headings, rows, shutil.get_terminal_size().columns)
    output.table(headings, rows)


def by_location(entries: Sequence[Event]) -> list[Event]:
    """Return entries in the order of locations: each command with its answers.

    The start comes first; entries without a location (signals, requests, the end) come last, in the order of the log.
    """
    locations: dict[int, Location | None] = {}
    for entry in entries:
        locations[entry.seq] = _location_of(entry, locations)
    located = [entry for entry in entries if locations[entry.seq] is not None]
    ordered = sorted(located, key=lambda entry: (locations[entry.seq] or ROOT, entry.seq))
    return [*ordered, *(entry for entry in entries if locations[entry.seq] is None)]


def _location_of(entry: Event, locations: dict[int, Location | None]) -> Location | None:
    """Return the location of an entry: its own, that of its command, or that of the handler it started."""
    if isinstance(entry, events.Started):
        return ROOT
    if isinstance(entry, events.SignalHandled | events.UpdateAccepted) and entry.scope:
        return Location((0,), (entry.scope,))
    return entry.location if entry.ref is None else locations.get(entry.ref)


def fitted(headings: Sequence[str], rows: list[list[str]], width: int) -> list[list[str]]:
    """Return rows that fit a terminal: with shorter times and values and, if necessary, shorter names."""
    value = headings.index("VALUE")
    if not rows or _room(headings, rows, value, width) >= max(len(row[value]) for row in rows):
        return rows
    start = 11 if len({row[1][:10] for row in rows}) == 1 else 5  # the day is shown only if there are several
    shorter = [[row[0], row[1][start:-1], *row[2:]] for row in rows]
    if _room(headings, shorter, value, width) < _WIDEST // 2:
        shorter = [[row[0], row[1][start:19], *row[2:4], _cut(row[4], _NARROWEST), *row[5:]] for row in rows]
    room = max(_NARROWEST, _room(headings, shorter, value, width))
    return [[*row[:value], _cut(row[value], room), *row[value + 1 :]] for row in shorter]


def _room(headings: Sequence[str], rows: Sequence[Sequence[str]], value: int, width: int) -> int:
    """Return how many characters of a line the other columns leave for the value."""
    columns = zip(headings, *rows, strict=True)
    return width - sum(max(map(len, column)) + 2 for number, column in enumerate(columns) if number != value)


def _print(entry: Event, active: Collection[int] | None) -> None:
    if active is None:
        click.echo(entry.to_json())
        return
    fields = msgspec.json.decode(entry.to_json(), type=dict[str, msgspec.Raw])
    output.document(fields | {"active": entry.seq in active})


def _row(entry: Event, active: Collection[int] | None) -> list[str]:
    at = output.time_text(entry.at, "milliseconds")
    kept = [] if active is None else ["active" if entry.seq in active else "forgotten"]
    return [str(entry.seq), at, entry.type, _location_text(entry), _name(entry), _value(entry), *kept]


def _name(entry: Event) -> str:
    """Return the name of a call, or the attribute or the step that an event of a flow is about."""
    about = entry.name or getattr(entry, "attribute", "") or getattr(entry, "step", "")
    return about if isinstance(about, str) else ""  # the catalog records whole steps


def _location_text(entry: Event) -> str:
    """Return the location of a command with its version, or the number of the command that an answer belongs to."""
    if entry.location is not None:
        return f"{entry.location}v{entry.version or 1}"
    return "" if entry.ref is None else f"of {entry.ref}"


def _value(entry: Event) -> str:
    """Return the most important value of an event, cut to fit."""
    if isinstance(entry, FlowStarted):  # its input holds the whole plan
        return _cut(one_line(_text(msgspec.json.decode(entry.input).get("init", {}))), _WIDEST)
    first = (_IDS[entry.type],) if entry.type in _IDS else ()
    for name in (*first, *_VALUES, *_MOMENTS):
        value = getattr(entry, name, None)
        if value not in (None, "", ()):
            text = output.time_text(value, "milliseconds") if name in _MOMENTS else _text(value)
            return _cut(one_line(text), _WIDEST)
    return ""


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _text(value: object) -> str:
    if isinstance(value, Failure):
        named = value.fields.get("error") if "history_value" in value.fields else None  # the class of a divergence
        kind = f" ({msgspec.json.decode(named)})" if named is not None else ""
        return f"{value.type.removeprefix('builtins.')}{kind}: {value.message}"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
