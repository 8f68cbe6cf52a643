"""Exceptions to what is recorded of them, and back.

An exception is rebuilt without calling its ``__init__``, which may want arguments nobody has any more, and only where
its type lives in a module that is already imported: reading a history must not import code. What cannot be rebuilt
faithfully (its text would differ) comes back as a `RemoteError`.
"""

import re
import traceback
from concurrent import futures
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Raw

from resurgam.core.errors import (
    ActivityFailed,
    ChildWorkflowFailed,
    DefinitionError,
    NonRetryable,
    OperationFailed,
    PromiseRejected,
    RemoteError,
    RetryAfter,
    SerializationError,
    SignalFailed,
    UpdateRejected,
    WorkflowFailed,
)
from resurgam.core.event import NULL, Failure
from resurgam.core.retry import RetryRule
from resurgam.core.typename import find_type, type_name

_NOT_THE_USERS = (str(Path(__file__).parents[1]), str(Path(futures.__file__).parent))
_MOST: Final = 256 * 1024
"""Bytes of one failure with all that led to it: it is read as often as the history is."""
_LEAST: Final = 2 * 1024
_TEXT_LIMIT: Final = 20_000
"""Characters kept of one text: a runaway recursion prints thousands of lines that say the same."""
_SHORTEST: Final = 100
"""Characters that are kept of each text even where there is no room."""
_MOST_NOTES: Final = 50
_CUT: Final = re.compile(r"\.\.\. \(\d+ characters were cut\)\Z")


def capture(error: BaseException, *, limit: int = _MOST) -> Failure:
    """Return what is recorded of an exception: type, message, notes, fields, traceback and cause chain.

    All of it together has about *limit* bytes at most; what is cut is said in its place.
    """
    return _captured(error, _Room(max(_LEAST, min(limit, _MOST))), depth=20, seen=frozenset())


class _Room:
    """The bytes that a failure may still have."""

    def __init__(self, left: int) -> None:
        self.left = left

    def text(self, text: str, *, from_the_end: bool = False) -> str:
        """Return text that JSON can hold, cut to what there is room for, at the beginning or at the end."""
        most = max(min(_TEXT_LIMIT, self.left // 2), _SHORTEST)
        kept = text[-most:] if from_the_end else text[:most]
        # Half a surrogate pair, as in the name of a file, is written out.
        kept = kept.encode("utf-8", "backslashreplace").decode()
        if len(text) > most:
            cut = f"({len(text) - most} characters were cut)"
            kept = f"{cut}\n{kept}" if from_the_end else f"{kept}... {cut}"
        self.left -= len(msgspec.json.encode(kept))
        return kept

    def value(self, value: object) -> Raw | None:
        """Return the JSON of a value; None if it has none, or one for which there is no room."""
        if isinstance(value, str | bytes) and len(value) > self.left:
            return None  # it is not written only to be dropped
        written = _write(value)
        if written is None or len(bytes(written)) > self.left // 2:
            return None
        self.left -= len(bytes(written))
        return written


def _captured(error: BaseException, room: _Room, depth: int, seen: frozenset[int]) -> Failure:
    """Capture one exception of a chain; *depth* and *seen* end those that are very long, or come back to themselves."""
    try:
        return _capture(error, room, depth, seen | {id(error)})
    except Exception as odd:  # noqa: BLE001 -- an exception of the user may refuse anything; its failure must not be lost
        return Failure(type=type_name(type(error)), message=f"<an exception that cannot be read: {type(odd).__name__}>")


def _capture(error: BaseException, room: _Room, depth: int, seen: frozenset[int]) -> Failure:
    message = room.text(_message(error))
    args = _written_args(error, room)
    fields, lost = _fields(error, room)
    traceback_ = room.text(_traceback(error), from_the_end=True)
    # What led to it comes before its notes, of which there may be many.
    cause = _leading_to(error, seen)
    behind = None
    if cause is not None and depth and room.left > 0:
        behind = _captured(cause, room, depth - 1, seen)
    elif cause is not None and depth:
        lost.append(f"(its cause, {type(cause).__name__}, was cut)")
    members, without = _members(error, room, depth, seen)
    return Failure(
        type=type_name(type(error)),
        message=message,
        bases=tuple(type_name(base) for base in type(error).__mro__[1:-2]),
        traceback=traceback_,
        notes=(*_kept_notes(error, room), *lost, *without),
        args=args,
        fields=fields,
        cause=behind,
        members=members,
    )


def _members(
    error: BaseException, room: _Room, depth: int, seen: frozenset[int]
) -> tuple[tuple[Failure, ...], list[str]]:
    """Return what is recorded of the exceptions of a group, at least of the first, and a note if some were cut."""
    if not isinstance(error, BaseExceptionGroup) or not depth:
        return (), []
    members: list[Failure] = []
    for member in error.exceptions:
        if members and room.left <= 0:
            return tuple(members), [f"({len(error.exceptions) - len(members)} exceptions of the group were cut)"]
        members.append(_captured(member, room, depth - 1, seen))
    return tuple(members), []


def rebuild(failure: Failure) -> BaseException:
    """Return the exception that was recorded, with its cause chain, its notes and the traceback it had there."""
    kind = _find(failure.type)
    error = None if kind is None else _revive(kind, failure)
    if error is None:
        error = RemoteError(failure.type, failure.message, failure.traceback)
        error.fields = _read_fields(failure)
        error.__cause__ = _cause(failure)
    for note in (*failure.notes, *([failure.traceback] if failure.traceback else ())):
        BaseException.add_note(error, note)
    if failure.traceback:
        error.__dict__["__remote_traceback__"] = failure.traceback
    return error


def retry_delay(rule: RetryRule, attempt: int, error: BaseException, failure: Failure, chance: float) -> int | None:
    """Return the milliseconds until an activity is tried again after failed try number *attempt*, or None."""
    names = (failure.type, *failure.bases)
    # By name too: in another process it may have been of a type that is not known in this one.
    if isinstance(error, _FINAL) or not _FINAL_NAMES.isdisjoint(names) or rule.excludes(names):
        return None
    usual = rule.delay_after(attempt, chance)
    return error.pause_ms if usual is not None and isinstance(error, RetryAfter) else usual


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


_FINAL: Final = (NonRetryable, SerializationError, DefinitionError)
"""Errors of an activity after which it is not tried again: the same result, or the same arguments, would not fit then."""
_FINAL_NAMES: Final = frozenset(map(type_name, _FINAL))
_REPORTS: Final = frozenset(
    map(
        type_name,
        (
            *(ActivityFailed, ChildWorkflowFailed, OperationFailed, PromiseRejected),
            *(SignalFailed, UpdateRejected, WorkflowFailed),
        ),
    )
)
"""Errors that report another one, their cause."""
_REMOTE: Final = type_name(RemoteError)


def _leading_to(error: BaseException, seen: frozenset[int]) -> BaseException | None:
    cause = error.__cause__
    if cause is None and not error.__suppress_context__:
        cause = error.__context__
    return None if id(cause) in seen else cause


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
    return (_remote(error) or local).rstrip()


def _notes(error: BaseException) -> list[str]:
    # A rebuilt exception carries its remote traceback as a note, to be printed; that is not one of its own notes.
    notes = getattr(error, "__notes__", None)
    return [str(note) for note in notes if note != _remote(error)] if isinstance(notes, list) else []


def _written_args(error: BaseException, room: _Room) -> Raw:
    args = _args(error)
    if any(isinstance(arg, str | bytes) and len(arg) > _TEXT_LIMIT for arg in args):
        return NULL  # the text was cut; it is made anew of what was kept
    return room.value(args) or NULL


def _kept_notes(error: BaseException, room: _Room) -> list[str]:
    notes = _notes(error)
    kept: list[str] = []
    for note in notes[:_MOST_NOTES]:
        if room.left <= 0:
            break
        kept.append(room.text(note))
    return kept if len(kept) == len(notes) else [*kept, f"({len(notes) - len(kept)} notes were cut)"]


def _fields(error: BaseException, room: _Room) -> tuple[dict[str, Raw], list[str]]:
    """Return the fields of an exception that have a JSON form, and a note for each that has none."""
    fields, lost = {}, []
    for name, value in vars(error).items():
        if name.startswith("__"):
            continue
        written = room.value(value)
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
    found = find_type(name)
    return found if found is not None and issubclass(found, BaseException) else None


def _read_fields(failure: Failure) -> dict[str, object]:
    return {name: msgspec.json.decode(value) for name, value in failure.fields.items()}


def _says(error: BaseException, message: str) -> bool:
    """Whether the text of an error is what was recorded, as far as it was."""
    cut = _CUT.search(message)
    return str(error) == message or (cut is not None and str(error).startswith(message[: cut.start()]))


def _revive(kind: type[BaseException], failure: Failure) -> BaseException | None:
    """Make the exception anew; None where the result would not say what the original said."""
    try:
        if issubclass(kind, BaseExceptionGroup):
            members = [rebuild(member) for member in failure.members]
            # As below: only Python's own part of it is made.
            group: BaseException = BaseExceptionGroup.__new__(kind, failure.message, members)
            BaseException.__init__(group, failure.message, members)
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
        return error if _says(error, failure.message) else None
    except BaseException:  # noqa: BLE001 -- any class of the user may refuse; the caller then falls back to RemoteError
        return None
