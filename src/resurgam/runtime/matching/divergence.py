"""Describe where code and history part: one function per way to diverge, which returns the error."""

import asyncio
import inspect
import linecache
import sys
import traceback
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.commands import Intent
from resurgam.core.errors import DeterminismViolation, HistoryDiverged, LatentHistory, ResurgamError
from resurgam.core.failure import capture, in_user_code
from resurgam.core.location import ROOT, Location
from resurgam.core.matchers import Diverged
from resurgam.runtime.definitions.definition import Workflow
from resurgam.runtime.loop.scope import Scope

_OWN_FILES = (
    *map(str, (Path(__file__).parents[1], Path(__file__).parents[2] / "core", Path(asyncio.__file__).parent)),
)

_SHOWN: Final = 200
"""Characters of a recorded value that a divergence shows."""


def diverged(match: Diverged, scope: Scope, command_id: str, intent: Intent | None = None) -> HistoryDiverged:
    """Return the error for another recorded command where the code makes a call."""
    kind = DeterminismViolation if scope.by_type else HistoryDiverged
    error = kind(
        match.event.location,
        command_id,
        match.field,
        code_value=match.code_value,
        history_value=match.history_value,
        event_seq=match.event.seq,
        source=source(),
    )
    error.call = (scope.location, scope.calls - 1)
    error.scope_version = scope.version
    error.event = match.event
    if intent is not None:
        error.intent, error.intent_name = intent.kind, intent.name
    return error


def in_values(difference: Diverged, given: object) -> Diverged:
    """Show the values of inputs whose fingerprints differ."""
    recorded = getattr(difference.event, "input", getattr(difference.event, "value", None))
    if difference.field != "input" or not isinstance(given, Raw) or not isinstance(recorded, Raw):
        return difference
    code_value, history_value = shown(given), shown(recorded)
    if code_value == history_value:  # they differ after the part that is shown
        return difference
    return msgspec.structs.replace(difference, code_value=code_value, history_value=history_value)


def shown(written: Raw) -> str:
    """Return a recorded value as text, truncated if it is long."""
    text = bytes(written).decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def latent(left: events.Command, scope: Scope) -> LatentHistory:
    """Return the error for a scope whose code has ended, while its history goes on."""
    error = LatentHistory(
        left.location, left.command, "end", code_value="ended", history_value=left.name or left.type, event_seq=left.seq
    )
    error.call = (scope.location, scope.calls)
    error.scope_version = scope.version
    error.event = left
    return error


def orphaned(left: events.Command, root: Scope) -> DeterminismViolation:
    """Return the error for a recorded command that the code has not reached by its end."""
    error = DeterminismViolation(
        left.location,
        left.command,
        "orphan",
        code_value="not asked for",
        history_value=left.name or left.type,
        event_seq=left.seq,
    )
    if left.location.scope == root.location:
        error.call = (root.location, root.calls)
    error.event = left
    return error


def gone_on(
    location: Location, ended: events.Event, kind: type[events.Command], command_id: str, name: str | None
) -> HistoryDiverged:
    """Return the error for a call after the recorded end of the workflow."""
    return HistoryDiverged(
        location,
        command_id,
        "end",
        code_value=f"goes on with {name or kind.__struct_config__.tag}",
        history_value=ended.type,
        event_seq=ended.seq,
        source=source(),
    )


def unasked(command: events.Command, answer: events.Answer) -> HistoryDiverged:
    """Return the error for an answer to a call that the code has not made."""
    error = HistoryDiverged(
        command.location,
        command.command,
        "order",
        code_value="not asked for",
        history_value=f"{answer.type} of {command.name or command.type}",
        event_seq=answer.seq,
    )
    error.event = command
    return error


def cancelled_another(
    cancelled: events.Command, recorded: events.Command, answer: events.Event
) -> DeterminismViolation:
    """Return the error for code that cancels another command than the history does."""
    return DeterminismViolation(
        recorded.location,
        recorded.command,
        "cancellation",
        code_value=cancelled.command,
        history_value=recorded.command,
        event_seq=answer.seq,
    )


def unfit_arguments(
    workflow: Workflow[..., Any], started: events.WorkflowStarted, error: ResurgamError
) -> HistoryDiverged:
    """Return the error for code that does not accept the arguments of the run."""
    return HistoryDiverged(
        ROOT,
        f"workflow {workflow.name!r}",
        "parameters",
        code_value=str(error),
        history_value=shown(started.input),
        event_seq=started.seq,
        source=_defined_at(workflow),
    )


def unfit(
    command: events.Command, answer: events.Event, field: str, code_value: str, history_value: str
) -> HistoryDiverged:
    """Return the error for a recorded answer that does not fit the code's call."""
    return HistoryDiverged(
        command.location,
        command.command,
        field,
        code_value=code_value,
        history_value=history_value,
        event_seq=answer.seq,
    )


def violation(error: HistoryDiverged) -> events.Failure:
    """Return the failure that is recorded for a run that fails because it diverged."""
    fields = {
        "error": type(error).__name__,
        "location": str(error.location),
        "command": error.command,
        "field": error.field,
        "code_value": error.code_value,
        "history_value": error.history_value,
        "event_seq": error.event_seq,
        "source": error.source,
    }
    return events.Failure(
        type="DETERMINISM_VIOLATION",
        message=str(error),
        traceback=capture(in_user_code(error)).traceback or _line(error.source),
        fields={name: Raw(msgspec.json.encode(value)) for name, value in fields.items()},
    )


def _line(source: str) -> str:
    """Return ``file:line`` with its code, formatted as in a traceback."""
    file, _, line = source.rpartition(":")
    if not line.isdecimal():
        return ""
    return f'  File "{file}", line {line}\n    {linecache.getline(file, int(line)).strip()}'.rstrip()


def source() -> str:
    """Return file and line of the user's code that is running."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_OWN_FILES):
        frame = frame.f_back  # type: ignore[assignment]
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""


def _defined_at(workflow: Workflow[..., Any]) -> str:
    """Return file and line of a workflow's function."""
    code = getattr(inspect.unwrap(workflow.function), "__code__", None) if workflow.function is not None else None
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""


def raised_at(error: BaseException) -> str:
    """Return file and line of the user's code from which an error was raised."""
    sources = [
        f"{frame.f_code.co_filename}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(_OWN_FILES)
    ]
    return sources[-1] if sources else ""
