"""Print a history: a table for people, the entries as lines of JSON for programs."""

import shutil
import sys
from collections.abc import Collection, Sequence
from typing import Final

import click
import msgspec

from resurgam.cli import output
from resurgam.core import event as events
from resurgam.core.event import Event, Failure
from resurgam.core.location import ROOT, Location

_HEADINGS: Final = ("SEQ", "TIME", "TYPE", "LOCATION", "NAME", "VALUE")
_VALUES: Final = (
    *("input", "result", "value", "failure", "diagnosis", "reason", "names", "signals", "winner", "size", "answer"),
    *("removed", "state", "iteration"),
)
_IDS: Final = {
    "child_scheduled": "entity_id",
    "child_started": "execution_id",
    "promise_created": "promise_id",
    "signal_sent": "entity_id",
    "workflow_continued": "run_id",
    "saga_step_registered": "undo",
    "saga_closed": "outcome",
}
"""What matters most of these events, instead of their values: who is meant, or what became of it."""

_MOMENTS: Final = ("deadline", "next_at")
_WIDEST: Final = 60
"""Characters shown of a value in a table; ``--json`` has all of it."""

_NARROWEST: Final = 12
"""Characters of a name or a value that a narrow terminal still shows."""


def show(entries: Sequence[Event], active: Collection[int] | None, *, as_json: bool) -> None:
    """Print entries; if *active* ones are named, also which of them are active and which are forgotten."""
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
    """Return entries in the order of locations: each command with what became of it.

    The start comes first; entries without a place (signals, requests, the end) come last, in the order of the log.
    """
    places: dict[int, Location | None] = {}
    for entry in entries:
        places[entry.seq] = _place_of(entry, places)
    placed = [entry for entry in entries if places[entry.seq] is not None]
    ordered = sorted(placed, key=lambda entry: (places[entry.seq] or ROOT, entry.seq))
    return [*ordered, *(entry for entry in entries if places[entry.seq] is None)]


def _place_of(entry: Event, places: dict[int, Location | None]) -> Location | None:
    """Return where an entry stands: by itself, with its command, or at the handler that it began."""
    if isinstance(entry, events.WorkflowStarted):
        return ROOT
    if isinstance(entry, events.SignalHandled | events.UpdateAccepted) and entry.scope:
        return Location((0,), (entry.scope,))
    return entry.location if entry.ref is None else places.get(entry.ref)


def fitted(headings: Sequence[str], rows: list[list[str]], width: int) -> list[list[str]]:
    """Return rows that fit a terminal: with shorter times and values, and if that is not enough, with shorter names."""
    value = headings.index("VALUE")
    if not rows or _room(headings, rows, value, width) >= max(len(row[value]) for row in rows):
        return rows
    start = 11 if len({row[1][:10] for row in rows}) == 1 else 5  # the day is told only where there are several
    shorter = [[row[0], row[1][start:-1], *row[2:]] for row in rows]
    if _room(headings, shorter, value, width) < _WIDEST // 2:
        shorter = [[row[0], row[1][start:19], *row[2:4], _cut(row[4], _NARROWEST), *row[5:]] for row in rows]
    room = max(_NARROWEST, _room(headings, shorter, value, width))
    return [[*row[:value], _cut(row[value], room), *row[value + 1 :]] for row in shorter]


def _room(headings: Sequence[str], rows: Sequence[Sequence[str]], value: int, width: int) -> int:
    """Return how many characters of a line all other columns leave for the value."""
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
    return [str(entry.seq), at, entry.type, _place(entry), entry.name or "", _value(entry), *kept]


def _place(entry: Event) -> str:
    """Return the place of a command with its version, or which entry an answer belongs to."""
    if entry.location is not None:
        return f"{entry.location}v{entry.version or 1}"
    return "" if entry.ref is None else f"of {entry.ref}"


def _value(entry: Event) -> str:
    """Return the one value that matters most of an event, cut to fit."""
    first = (_IDS[entry.type],) if entry.type in _IDS else ()
    for name in (*first, *_VALUES, *_MOMENTS):
        value = getattr(entry, name, None)
        if value not in (None, "", ()):
            text = output.time_text(value, "milliseconds") if name in _MOMENTS else _text(value)
            return _cut(output.one_line(text), _WIDEST)
    return ""


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _text(value: object) -> str:
    if isinstance(value, Failure):
        named = value.fields.get("error") if "history_value" in value.fields else None  # the class of a divergence
        kind = f" ({msgspec.json.decode(named)})" if named is not None else ""
        return f"{value.type.removeprefix('builtins.')}{kind}: {value.message}"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
