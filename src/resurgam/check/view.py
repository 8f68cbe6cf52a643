"""Shows a point where code and history part: the recorded commands beside what the code asks for, and its line."""

import linecache
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, Final

from resurgam.check.examined import Detail, Edits, Row, Source
from resurgam.core import event as events
from resurgam.core.commands import COMMANDS, COMMANDS_BY_TAG
from resurgam.core.errors import HistoryDiverged, LatentHistory
from resurgam.core.location import Location
from resurgam.runtime.definitions.definition import Workflow, WorkflowOptions
from resurgam.runtime.rehearsal.rehearsal import asked

_BEFORE: Final = 3
_AFTER: Final = 2
"""How many commands are shown before the point and behind it."""

_END: Final = "; it would be failed for good, not parked (on_divergence)"

_COMPARED: Final = ("name", "input", "duration")
"""What `input_check` compares of a call that is the same otherwise."""


def detail_of(
    workflow: Workflow[..., Any], log: Sequence[events.Event], error: HistoryDiverged, remedy: Edits
) -> Detail:
    """Return all that is to be told of a divergence; *remedy* shows how the code goes on behind it."""
    return Detail(
        message=f"{error}{_END if _fails(workflow, log) else ''}",
        location=str(error.location),
        command=error.command,
        field=error.field,
        code_value=error.code_value,
        history_value=error.history_value,
        event_seq=error.event_seq,
        source=source_of(error.source) or definition_of(workflow),
        view=tuple(_rows(workflow, log, error, remedy)),
    )


def _fails(workflow: Workflow[..., Any], log: Sequence[events.Event]) -> bool:
    recorded = next((entry.matching for entry in log if isinstance(entry, events.WorkflowStarted)), None)
    options = workflow.settings or WorkflowOptions()
    return options.fails(recorded or options.matching)


def source_of(place: str) -> Source | None:
    """Return the line of code at ``file:line``."""
    file, _, line = place.rpartition(":")
    return Source(file, int(line), linecache.getline(file, int(line)).strip()) if file and line.isdecimal() else None


def definition_of(workflow: Workflow[..., Any]) -> Source | None:
    """Return the line at which a workflow's function begins."""
    code = getattr(workflow.function, "__code__", None)
    if code is None:
        return None
    for line in range(code.co_firstlineno, code.co_firstlineno + 20):  # behind its decorators
        found = source_of(f"{code.co_filename}:{line}")
        if found is not None and "def " in found.text:
            return found
    return source_of(f"{code.co_filename}:{code.co_firstlineno}")


def _rows(
    workflow: Workflow[..., Any], log: Sequence[events.Event], error: HistoryDiverged, remedy: Edits
) -> Iterator[Row]:
    if error.event is None:
        return
    point, scope = error.event.location, error.event.location.scope
    recorded = _in(scope, (entry for entry in log if isinstance(entry, events.Command)))
    made = _in(scope, asked(workflow, log))
    before = sorted({*recorded, *made} - {place for place in (*recorded, *made) if not place < point})
    yield from (_row(recorded.get(place), made.get(place)) for place in before[-_BEFORE:])
    yield _row(error.event, None, code=_asked_for(error), here=True)
    left = [entry for place, entry in sorted(recorded.items()) if point < place]
    after = _in(scope, asked(workflow, log, remedy)) if remedy else {}
    right = [entry for place, entry in sorted(after.items()) if place not in before]
    if error.intent is not None or error.field in _COMPARED:
        right = right[1:]  # which is what it asks for at the point itself
    for entry, call in zip_longest(left[:_AFTER], right[:_AFTER]):
        yield _row(entry, call)


def _in(scope: Location, commands: Iterable[events.Command]) -> dict[Location, events.Command]:
    return {entry.location: entry for entry in commands if entry.location.scope == scope}


def _row(entry: events.Command | None, call: events.Command | None, *, code: str = "", here: bool = False) -> Row:
    return Row(
        location="" if entry is None else str(entry.location),
        version=None if entry is None else entry.version,
        history="" if entry is None else told(entry),
        code=code if call is None else told(call),
        here=here,
    )


def _asked_for(error: HistoryDiverged) -> str:
    if error.intent is not None:
        return _call(error.intent, error.intent_name)
    if isinstance(error, LatentHistory):
        return "(ends)"
    if error.event is not None and error.field in _COMPARED:
        kind = type(error.event)
        return _call(kind, error.code_value) if error.field == "name" else f"{told(error.event)}, another {error.field}"
    kind_asked = COMMANDS_BY_TAG.get(error.code_value)
    return error.code_value if kind_asked is None else kind_asked.verb


def told(command: events.Command) -> str:
    """Return a command as code would ask for it."""
    if isinstance(command, events.StepRemoved):
        return f"removed.{_call(COMMANDS_BY_TAG[command.removed].event, command.name)}"
    return _call(type(command), command.name)


def _call(kind: type[events.Command], name: str | None) -> str:
    return f"{COMMANDS[kind].verb}{f' {name}' if name else ''}"
