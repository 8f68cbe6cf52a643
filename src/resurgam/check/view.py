"""Show a divergence: the recorded commands beside those of the code, and the line of code."""

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
from resurgam.runtime.rehearsal.rehearsal import calls_made

_BEFORE: Final = 3
_AFTER: Final = 2
"""How many commands are shown before and after the divergence."""

_END: Final = "; the run would fail, not be parked (on_divergence)"

_COMPARED: Final = ("name", "input", "duration")
"""The fields of a matching call that `input_check` compares."""


def detail_of(
    workflow: Workflow[..., Any], log: Sequence[events.Event], error: HistoryDiverged, remedy: Edits
) -> Detail:
    """Return the detail of a divergence; *remedy* makes the commands of the code after it known."""
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


def source_of(file_and_line: str) -> Source | None:
    """Return the line of code at ``file:line``."""
    file, _, line = file_and_line.rpartition(":")
    return Source(file, int(line), linecache.getline(file, int(line)).strip()) if file and line.isdecimal() else None


def definition_of(workflow: Workflow[..., Any]) -> Source | None:
    """Return the line of a workflow's ``def``."""
    code = getattr(workflow.function, "__code__", None)
    if code is None:
        return None
    for line in range(code.co_firstlineno, code.co_firstlineno + 20):  # after its decorators
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
    made = _in(scope, calls_made(workflow, log))
    before = sorted({*recorded, *made} - {location for location in (*recorded, *made) if not location < point})
    yield from (_row(recorded.get(location), made.get(location)) for location in before[-_BEFORE:])
    yield _row(error.event, None, code=_code_at(error), here=True)
    left = [entry for location, entry in sorted(recorded.items()) if point < location]
    after = _in(scope, calls_made(workflow, log, remedy)) if remedy else {}
    right = [entry for location, entry in sorted(after.items()) if location not in before]
    if error.intent is not None or error.field in _COMPARED:
        right = right[1:]  # without the call at the divergence itself
    for entry, call in zip_longest(left[:_AFTER], right[:_AFTER]):
        yield _row(entry, call)


def _in(scope: Location, commands: Iterable[events.Command]) -> dict[Location, events.Command]:
    return {entry.location: entry for entry in commands if entry.location.scope == scope}


def _row(entry: events.Command | None, call: events.Command | None, *, code: str = "", here: bool = False) -> Row:
    return Row(
        location="" if entry is None else str(entry.location),
        version=None if entry is None else entry.version,
        history="" if entry is None else call_text(entry),
        code=code if call is None else call_text(call),
        here=here,
    )


def _code_at(error: HistoryDiverged) -> str:
    """Return the call of the code at the divergence, as text."""
    if error.intent is not None:
        return _call(error.intent, error.intent_name)
    if isinstance(error, LatentHistory):
        return "(ends)"
    if error.event is not None and error.field in _COMPARED:
        kind = type(error.event)
        if error.field == "name":
            return _call(kind, error.code_value)
        return f"{call_text(error.event)}, another {error.field}"
    code_command = COMMANDS_BY_TAG.get(error.code_value)
    return error.code_value if code_command is None else code_command.verb


def call_text(command: events.Command) -> str:
    """Return a command as the call of the code that makes it."""
    if isinstance(command, events.StepRemoved):
        return f"removed.{_call(COMMANDS_BY_TAG[command.removed].event, command.name)}"
    return _call(type(command), command.name)


def _call(kind: type[events.Command], name: str | None) -> str:
    return f"{COMMANDS[kind].verb}{f' {name}' if name else ''}"
