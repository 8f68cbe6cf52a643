"""The result of checking one run: values that the replaying process sends to the reporting one."""

from enum import StrEnum
from typing import TypeAlias

import msgspec

from resurgam.core.edit import Edit, Note

Edits: TypeAlias = tuple[Edit, ...]


class Outcome(StrEnum):
    """Whether code fits a history.

    *fails*: the code raises an exception that the history does not have. *unreadable*: the history cannot be decoded or
    is corrupt. *unknown*: the code has no such workflow. *ended*: the run has closed meanwhile.
    """

    FITS = "fits"
    DIVERGES = "diverges"
    UNDECIDED = "undecided"
    FAILS = "fails"
    UNREADABLE = "unreadable"
    UNKNOWN = "unknown"
    ENDED = "ended"


class Run(msgspec.Struct, frozen=True):
    """An open run, as the store lists it."""

    entity_id: str
    execution_id: str
    workflow: str
    parked: bool = False


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the view around a divergence: the recorded command beside that of the code; *here* they differ."""

    location: str = ""
    version: int | None = None
    history: str = ""
    code: str = ""
    here: bool = False


class Source(msgspec.Struct, frozen=True):
    """A line of code."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Detail(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how code and history differ."""

    message: str
    location: str = ""
    command: str = ""
    field: str = ""
    code_value: str = ""
    history_value: str = ""
    event_seq: int | None = None
    source: Source | None = None
    view: tuple[Row, ...] = ()


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one run. *key* is the same for runs with the same finding, *shape* for histories with the same commands.

    *notes* are the ``ctx.removed`` calls that its replay reached. *remedy* is None if none was searched for. Only the
    first run of a key in each process has a *detail*.
    """

    run: Run
    outcome: Outcome
    python: str = ""
    shape: str = ""
    key: tuple[str, ...] = ()
    remedy: Edits | None = None
    detail: Detail | None = None
    notes: tuple[Note, ...] = ()
