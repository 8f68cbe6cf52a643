"""Exceptions to what is recorded of them, and back.

An exception is rebuilt without calling its ``__init__``, which may want arguments nobody has any more, and only where
its type lives in a module that is already imported: reading a history must not import code. What cannot be rebuilt
faithfully (its text would differ) comes back as a `RemoteError`.
"""

import sys
import traceback
from concurrent import futures
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Raw

from resurgam.core.errors import (
    ActivityFailed,
    ChildWorkflowFailed,
    OperationFailed,
    PromiseRejected,
    RemoteError,
    SignalFailed,
    UpdateRejected,
    WorkflowFailed,
)
from resurgam.core.event import NULL, Failure

_NOT_THE_USERS = (str(Path(__file__).parents[1]), str(Path(futures.__file__).parent))
_TEXT_LIMIT = 20_000
"""Characters kept of one traceback: a runaway recursion prints thousands of lines that say the same."""


def capture(error: BaseException, *, depth: int = 20, seen: frozenset[int] = frozenset()) -> Failure:
    """Return what is recorded of an exception: type, message, notes, fields, traceback and cause chain.

    *depth* and *seen* end chains that are very long, or that lead back to where they came from.
    """
    try:
        return _capture(error, depth, seen | {id(error)})
    except Exception as odd:  # noqa: BLE001 -- an exception of the user may refuse anything; its failure must not be lost
        return Failure(type=name_of(type(error)), message=f"<an exception that cannot be read: {type(odd).__name__}>")


def _capture(error: BaseException, depth: int, seen: frozenset[int]) -> Failure:
    cause = _leading_to(error, seen)
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    fields, lost = _fields(error)
    return Failure(
        type=name_of(type(error)),
        message=_text(_message(error)),
        bases=tuple(name_of(base) for base in type(error).__mro__[1:-2]),
        traceback=_text(_traceback(error)),
        notes=tuple(_text(note) for note in (*_notes(error), *lost)),
        args=_write(_args(error)) or NULL,
        fields=fields,
        cause=capture(cause, depth=depth - 1, seen=seen) if cause is not None and depth else None,
        members=tuple(capture(member, depth=depth - 1, seen=seen) for member in members) if depth else (),
    )


def rebuild(failure: Failure) -> BaseException:
    """Return the exception that was recorded, with its cause chain, its notes and the traceback it had there."""
    kind = _find(failure.type)
    error = None if kind is None else _revive(kind, failure)
    if error is None:
        error = RemoteError(failure.type, failure.message, failure.traceback)
        error.__cause__ = _cause(failure)
    for note in (*failure.notes, *([failure.traceback] if failure.traceback else ())):
        BaseException.add_note(error, note)
    if failure.traceback:
        error.__dict__["__remote_traceback__"] = failure.traceback
    return error


def root_type(failure: Failure) -> str:
    """Return the type name that stands for a failure in lists, without its module.

    An error that only reports another one (`ActivityFailed`, `ChildWorkflowFailed`, …) is named after its cause.
    """
    while not _REPORTS.isdisjoint((failure.type, *failure.bases)) and failure.cause is not None:
        failure = failure.cause
    known = failure.fields.get("type_name") if failure.type == _REMOTE else None
    name = failure.type if known is None else msgspec.json.decode(known, type=str)
    return name.rpartition(".")[2]


def _cause(failure: Failure) -> BaseException | None:
    return None if failure.cause is None else rebuild(failure.cause)


def in_user_code(error: BaseException) -> BaseException:
    """Take the engine's own frames off a traceback, so that what is recorded and shown begins in the user's code."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frames = frames.tb_next
    return error if frames is None else error.with_traceback(frames)


def name_of(kind: type[BaseException]) -> str:
    """Return the full name under which a type of exception is recorded."""
    return f"{kind.__module__}.{kind.__qualname__}"


_REPORTS: Final = frozenset(
    map(
        name_of,
        (
            *(ActivityFailed, ChildWorkflowFailed, OperationFailed, PromiseRejected),
            *(SignalFailed, UpdateRejected, WorkflowFailed),
        ),
    )
)
"""Errors that report another one, their cause."""
_REMOTE: Final = name_of(RemoteError)


def _leading_to(error: BaseException, seen: frozenset[int]) -> BaseException | None:
    cause = error.__cause__
    if cause is None and not error.__suppress_context__:
        cause = error.__context__
    return None if id(cause) in seen else cause


def _text(text: str) -> str:
    """Return text that JSON can hold: half a surrogate pair, as in the name of a file, is written out."""
    return text.encode("utf-8", "backslashreplace").decode()


def _message(error: BaseException) -> str:
    try:
        return error.message if isinstance(error, BaseExceptionGroup) else str(error)
    except BaseException as broken:  # noqa: BLE001 -- a broken __str__ of the user must not lose the failure itself
        return f"<{type(error).__name__} whose text cannot be made: {broken!r}>"


def _args(error: BaseException) -> list[object]:
    # An OSError keeps the file's name out of `args`, and needs it there to be made anew.
    if isinstance(error, OSError) and error.filename is not None:
        more = [] if error.filename2 is None else [None, error.filename2]
        return [error.errno, error.strerror, error.filename, *more]
    return list(error.args)


def _remote(error: BaseException) -> str:
    return str(error.__dict__.get("__remote_traceback__", ""))


def _traceback(error: BaseException) -> str:
    lines = traceback.format_tb(error.__traceback__)
    local = f"Traceback (most recent call last):\n{''.join(lines)}" if lines else ""
    return (_remote(error) or local)[-_TEXT_LIMIT:].rstrip()


def _notes(error: BaseException) -> list[str]:
    # A rebuilt exception carries its remote traceback as a note, to be printed; that is not one of its own notes.
    notes = getattr(error, "__notes__", None)
    return [str(note) for note in notes if note != _remote(error)] if isinstance(notes, list) else []


def _fields(error: BaseException) -> tuple[dict[str, Raw], list[str]]:
    """Return the fields of an exception that have a JSON form, and a note for each that has none."""
    fields, lost = {}, []
    for name, value in vars(error).items():
        if name.startswith("__"):
            continue
        written = _write(value)
        if written is None:
            lost.append(f"(field {name!r} of type {type(value).__name__} could not be recorded)")
        else:
            fields[name] = written
    return fields, lost


def _write(value: object) -> Raw | None:
    try:
        data = msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        return None
    # NaN and infinity would come back as None: rather nothing than something else.
    return None if b"null" in data and msgspec.json.decode(data) != msgspec.to_builtins(value) else Raw(data)


def _find(name: str) -> type[BaseException] | None:
    parts = name.split(".")
    for split in range(len(parts) - 1, 0, -1):
        module = sys.modules.get(".".join(parts[:split]))
        if module is not None:
            found: object = module
            for part in parts[split:]:
                # Not getattr: a module may import things when it is asked for a name.
                found = getattr(found, "__dict__", {}).get(part)
            return found if isinstance(found, type) and issubclass(found, BaseException) else None
    return None


def _read_fields(failure: Failure) -> dict[str, object]:
    return {name: msgspec.json.decode(value) for name, value in failure.fields.items()}


def _revive(kind: type[BaseException], failure: Failure) -> BaseException | None:
    """Make the exception anew; None where the result would not say what the original said."""
    try:
        if issubclass(kind, BaseExceptionGroup):
            group: BaseException = kind(failure.message, [rebuild(member) for member in failure.members])
            group.__dict__.update(_read_fields(failure))
            group.__cause__ = _cause(failure)
            return group
        recorded = msgspec.json.decode(failure.args)
        args = [failure.message] if recorded is None else recorded
        error = kind.__new__(kind, *args)
        # Only Python's own initialiser is called, which sets what its text is made of: errno, value, code.
        own = next(base for base in kind.__mro__ if base.__module__ == "builtins")
        type.__getattribute__(own, "__init__")(error, *args)
        error.__dict__.update(_read_fields(failure))
        error.__cause__ = _cause(failure)
        return error if str(error) == failure.message else None
    except BaseException:  # noqa: BLE001 -- any class of the user may refuse; the caller then falls back to RemoteError
        return None
