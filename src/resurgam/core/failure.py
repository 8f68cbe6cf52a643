"""Record exceptions as `Failure` values, and rebuild them.

An exception is rebuilt without calling its ``__init__``, whose arguments may be unknown, and only if its module is
already imported: reading a history must not import code. An exception whose rebuilt text would differ becomes a
`RemoteError`.
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

_ENGINE_PATHS = (str(Path(__file__).parents[1]), str(Path(futures.__file__).parent))
_LIMIT: Final = 256 * 1024
"""Bytes of one failure with its cause chain: it is read on every replay."""
_MIN_LIMIT: Final = 2 * 1024
_TEXT_LIMIT: Final = 20_000
"""Characters kept of one text: a runaway recursion prints thousands of equal lines."""
_MIN_TEXT: Final = 100
"""Characters kept of each text even if the budget is used up."""
_MAX_NOTES: Final = 50
_CUT: Final = re.compile(r"\.\.\. \(\d+ characters were cut\)\Z")


def capture(error: BaseException, *, limit: int = _LIMIT) -> Failure:
    """Record an exception: type, message, notes, fields, traceback and cause chain.

    The result has at most about *limit* bytes; each cut is noted in its place.
    """
    return _capture_safely(error, _Budget(max(_MIN_LIMIT, min(limit, _LIMIT))), depth=20, seen=frozenset())


class _Budget:
    """The number of bytes left for a failure."""

    def __init__(self, left: int) -> None:
        self.left = left

    def text(self, text: str, *, keep_end: bool = False) -> str:
        """Return *text* in a form that JSON can hold, cut to the budget at its end or, with *keep_end*, its start."""
        most = max(min(_TEXT_LIMIT, self.left // 2), _MIN_TEXT)
        kept = text[-most:] if keep_end else text[:most]
        # A lone surrogate, as in a file name, is escaped.
        kept = kept.encode("utf-8", "backslashreplace").decode()
        if len(text) > most:
            cut = f"({len(text) - most} characters were cut)"
            kept = f"{cut}\n{kept}" if keep_end else f"{kept}... {cut}"
        self.left -= len(msgspec.json.encode(kept))
        return kept

    def value(self, value: object) -> Raw | None:
        """Encode a value; None if it has no JSON form, or exceeds the budget."""
        if isinstance(value, str | bytes) and len(value) > self.left:
            return None  # do not encode a large value only to drop it
        written = _encode(value)
        if written is None or len(bytes(written)) > self.left // 2:
            return None
        self.left -= len(bytes(written))
        return written


def _capture_safely(error: BaseException, budget: _Budget, depth: int, seen: frozenset[int]) -> Failure:
    """Capture one exception of a chain; *depth* and *seen* end chains that are very long or cyclic."""
    try:
        return _capture(error, budget, depth, seen | {id(error)})
    except Exception as odd:  # noqa: BLE001 -- a user's exception class may raise anywhere; the failure must not be lost
        return Failure(type=type_name(type(error)), message=f"<an exception that cannot be read: {type(odd).__name__}>")


def _capture(error: BaseException, budget: _Budget, depth: int, seen: frozenset[int]) -> Failure:
    message = budget.text(_message(error))
    args = _encode_args(error, budget)
    fields, lost = _capture_fields(error, budget)
    traceback_ = budget.text(_traceback(error), keep_end=True)
    # The cause takes its budget before the notes, of which there may be many.
    cause = _cause_of(error, seen)
    behind = None
    if cause is not None and depth and budget.left > 0:
        behind = _capture_safely(cause, budget, depth - 1, seen)
    elif cause is not None and depth:
        lost.append(f"(its cause, {type(cause).__name__}, was cut)")
    members, without = _capture_members(error, budget, depth, seen)
    return Failure(
        type=type_name(type(error)),
        message=message,
        bases=tuple(type_name(base) for base in type(error).__mro__[1:-2]),
        traceback=traceback_,
        notes=(*_capture_notes(error, budget), *lost, *without),
        args=args,
        fields=fields,
        cause=behind,
        members=members,
    )


def _capture_members(
    error: BaseException, budget: _Budget, depth: int, seen: frozenset[int]
) -> tuple[tuple[Failure, ...], list[str]]:
    """Capture the exceptions of a group, at least the first; also return a note if some were cut."""
    if not isinstance(error, BaseExceptionGroup) or not depth:
        return (), []
    members: list[Failure] = []
    for member in error.exceptions:
        if members and budget.left <= 0:
            return tuple(members), [f"({len(error.exceptions) - len(members)} exceptions of the group were cut)"]
        members.append(_capture_safely(member, budget, depth - 1, seen))
    return tuple(members), []


def rebuild(failure: Failure) -> BaseException:
    """Rebuild a recorded exception with its cause chain, its notes and its original traceback."""
    kind = _find(failure.type)
    error = None if kind is None else _reconstruct(kind, failure)
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
    """Return the milliseconds until an activity is retried after failed attempt number *attempt*, or None."""
    names = (failure.type, *failure.bases)
    # By name too: the error's type may be known only in the process that ran the activity.
    if isinstance(error, _FINAL) or not _FINAL_NAMES.isdisjoint(names) or rule.excludes(names):
        return None
    usual = rule.delay_after(attempt, chance)
    return error.pause_ms if usual is not None and isinstance(error, RetryAfter) else usual


def root_type(failure: Failure) -> str:
    """Return the type name shown for a failure in lists, without its module.

    An error that only wraps another one (`ActivityFailed`, `ChildWorkflowFailed`, …) is named after its cause.
    """
    while not _REPORTS.isdisjoint((failure.type, *failure.bases)) and failure.cause is not None:
        failure = failure.cause
    known = failure.fields.get("type_name") if failure.type == _REMOTE else None
    name = failure.type if known is None else msgspec.json.decode(known, type=str)
    return name.rpartition(".")[2]


def _cause(failure: Failure) -> BaseException | None:
    return None if failure.cause is None else rebuild(failure.cause)


def in_user_code(error: BaseException) -> BaseException:
    """Strip the engine's frames from a traceback, so that it starts in user code."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_ENGINE_PATHS):
        frames = frames.tb_next
    return error if frames is None else error.with_traceback(frames)


_FINAL: Final = (NonRetryable, SerializationError, DefinitionError)
"""Errors after which an activity is not retried: the same result, or the same arguments, would fail again."""
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
"""Errors that wrap another one, their cause."""
_REMOTE: Final = type_name(RemoteError)


def _cause_of(error: BaseException, seen: frozenset[int]) -> BaseException | None:
    cause = error.__cause__
    if cause is None and not error.__suppress_context__:
        cause = error.__context__
    return None if id(cause) in seen else cause


def _message(error: BaseException) -> str:
    try:
        return error.message if isinstance(error, BaseExceptionGroup) else str(error)
    except BaseException as broken:  # noqa: BLE001 -- a broken __str__ must not lose the failure itself
        return f"<{type(error).__name__} whose text cannot be made: {broken!r}>"


def _args(error: BaseException) -> list[object]:
    # An OSError keeps the file name out of `args`, but needs it there to be rebuilt.
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
    # A rebuilt exception carries its remote traceback as a note for printing; that is not one of its own notes.
    notes = getattr(error, "__notes__", None)
    return [str(note) for note in notes if note != _remote(error)] if isinstance(notes, list) else []


def _encode_args(error: BaseException, budget: _Budget) -> Raw:
    args = _args(error)
    if any(isinstance(arg, str | bytes) and len(arg) > _TEXT_LIMIT for arg in args):
        return NULL  # the text was cut; the exception is rebuilt from the message
    return budget.value(args) or NULL


def _capture_notes(error: BaseException, budget: _Budget) -> list[str]:
    notes = _notes(error)
    kept: list[str] = []
    for note in notes[:_MAX_NOTES]:
        if budget.left <= 0:
            break
        kept.append(budget.text(note))
    return kept if len(kept) == len(notes) else [*kept, f"({len(notes) - len(kept)} notes were cut)"]


def _capture_fields(error: BaseException, budget: _Budget) -> tuple[dict[str, Raw], list[str]]:
    """Encode the fields of an exception; also return a note for each that has no JSON form."""
    fields, lost = {}, []
    for name, value in vars(error).items():
        if name.startswith("__"):
            continue
        written = budget.value(value)
        if written is None:
            lost.append(f"(field {name!r} of type {type(value).__name__} could not be recorded)")
        else:
            fields[name] = written
    return fields, lost


def _encode(value: object) -> Raw | None:
    try:
        data = msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        return None
    # NaN and infinity would become None: better to drop the value.
    return None if b"null" in data and msgspec.json.decode(data) != msgspec.to_builtins(value) else Raw(data)


def _find(name: str) -> type[BaseException] | None:
    found = find_type(name)
    return found if found is not None and issubclass(found, BaseException) else None


def _read_fields(failure: Failure) -> dict[str, object]:
    return {name: msgspec.json.decode(value) for name, value in failure.fields.items()}


def _same_message(error: BaseException, message: str) -> bool:
    """Whether the text of an error equals the recorded message, up to where that was cut."""
    cut = _CUT.search(message)
    return str(error) == message or (cut is not None and str(error).startswith(message[: cut.start()]))


def _reconstruct(kind: type[BaseException], failure: Failure) -> BaseException | None:
    """Rebuild the exception; None if its text would differ from the original."""
    try:
        if issubclass(kind, BaseExceptionGroup):
            members = [rebuild(member) for member in failure.members]
            # As below, only the builtin initialiser is called.
            group: BaseException = BaseExceptionGroup.__new__(kind, failure.message, members)
            BaseException.__init__(group, failure.message, members)
            group.__dict__.update(_read_fields(failure))
            group.__cause__ = _cause(failure)
            return group
        recorded = msgspec.json.decode(failure.args)
        args = [failure.message] if recorded is None else recorded
        error = kind.__new__(kind, *args)
        # Only the builtin initialiser is called; it sets the attributes that the text uses: errno, value, code.
        own = next(base for base in kind.__mro__ if base.__module__ == "builtins")
        type.__getattribute__(own, "__init__")(error, *args)
        error.__dict__.update(_read_fields(failure))
        error.__cause__ = _cause(failure)
        return error if _same_message(error, failure.message) else None
    except BaseException:  # noqa: BLE001 -- a user's class may raise anything; the caller falls back to RemoteError
        return None
