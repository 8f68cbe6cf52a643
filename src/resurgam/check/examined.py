"""What is found out about one run: values, which cross from the process that replays to the one that tells."""

from enum import StrEnum
from typing import TypeAlias

import msgspec

from resurgam.core.edit import Edit, Note

Edits: TypeAlias = tuple[Edit, ...]


class Outcome(StrEnum):
    """How code stands to a history.

    *fails*: the code raises where the history has not ended. *unreadable*: the history is not one. *ended*: the run is
    not open any more.
    """

    FITS = "fits"
    DIVERGES = "diverges"
    UNDECIDED = "undecided"
    FAILS = "fails"
    UNREADABLE = "unreadable"
    UNKNOWN = "unknown"
    ENDED = "ended"


class Run(msgspec.Struct, frozen=True):
    """An open run, as a listing has it."""

    entity_id: str
    execution_id: str
    workflow: str
    parked: bool = False


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the view around a point: what is recorded beside what the code asks for; *here* they part."""

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
    """Where code and history part, and how."""

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
    """One run. *key* is the same for runs with the same finding, *shape* for histories with the same commands.

    *notes* are the removals that its code came to. *remedy* is None where none was looked for. *detail* is there for the first run of a key that a process has seen.
    """

    run: Run
    outcome: Outcome
    python: str = ""
    shape: str = ""
    key: tuple[str, ...] = ()
    remedy: Edits | None = None
    detail: Detail | None = None
    notes: tuple[Note, ...] = ()
