"""The scope of sequential workflow code: its location in the history, and its counters.

Everything drawn or counted (command ids, random numbers, hashes of futures) belongs to the scope, not to the execution:
scopes may advance in any order relative to each other, but each one replays its own steps exactly.
"""

from contextvars import ContextVar
from hashlib import blake2b
from random import Random
from struct import Struct
from typing import Final, TypeAlias

from resurgam.core.location import Location
from resurgam.core.matchers import Cursor, matcher


class Scope:
    """One scope: the root, a task, a branch, a race, an iteration of a loop."""

    __slots__ = (
        *("_ids", "_random", "calls", "counts", "cursor", "futures", "gate", "in_order", "location", "match"),
        *("matching", "owner", "seed", "version"),
    )

    def __init__(
        self, location: Location, cursor: Cursor, seed: str, owner: object, version: int, matching: str
    ) -> None:
        self.location = location
        self.cursor = cursor
        self.seed = seed
        self.owner = owner
        self.version = version
        self.matching = matching
        self.match = matcher(matching)
        # Whether a call is matched with the next recorded command, whatever that is.
        self.in_order = matching == "location"
        # The answer of the latest version check, until the next durable call.
        self.gate: int | None = None
        self.calls = 0
        self.counts: dict[str, int] = {}
        self.futures = 0
        self._random: Random | None = None
        self._ids: Random | None = None

    @property
    def by_type(self) -> bool:
        """Whether commands are matched by type and number instead of location."""
        return self.matching == "sequence"

    def absolute(self, step: int | None) -> int:
        """Return the version recorded for a call; *step* is the argument of ``ctx.v``, where 1 is the scope's own."""
        if step is None:
            inside = ambient.get(None)
            if inside is None or inside[0] is not self:
                return self.version
            step = inside[1]
        return self.version + step - 1

    def command_id(self, kind: str) -> str:
        """Count one more command of this type and return its id, such as ``Task(2)`` or ``Task(2)@{3, 1}``."""
        number = self.counts.get(kind, 0)
        self.counts[kind] = number + 1
        return f"{kind}({number})@{self.location}" if self.location.coordinates else f"{kind}({number})"

    def future_hash(self) -> int:
        """Return the hash for the next bare future created in this scope."""
        self.futures += 1
        return stable_hash(self.seed, f"{self.location}#{self.futures}")

    @property
    def random(self) -> Random:
        """The random numbers of the scope."""
        if self._random is None:
            self._random = Random(f"{self.seed}{self.location}")
        return self._random

    @property
    def ids(self) -> Random:
        """The random numbers for ids, separate from `random` so that neither shifts the other."""
        if self._ids is None:
            self._ids = Random(f"{self.seed}{self.location}ids")
        return self._ids


current: ContextVar[Scope] = ContextVar("resurgam.scope")
"""The running scope. A task copies its creator's context and then gets a scope of its own."""

Ambient: TypeAlias = "tuple[Scope, int, Ambient | None]"
ambient: "ContextVar[Ambient | None]" = ContextVar("resurgam.version")
"""The version that ``with ctx.v(n):`` gives to the calls of one scope, and the enclosing one; a scope started inside
begins with 1 again."""


_HASH: Final = Struct(">q")


def stable_hash(seed: str, name: str) -> int:
    """Return a hash that is the same in every process, so that sets of futures iterate in the same order on replay."""
    found: int = _HASH.unpack(blake2b(f"{seed}{name}".encode(), digest_size=8).digest())[0]
    return found
