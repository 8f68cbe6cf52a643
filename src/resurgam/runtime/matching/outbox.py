"""What an execution wants of the world, by the entry that asks for it, until the commit that tells the world."""

from typing import Any, Literal, TypeAlias

from resurgam.core.outcome import ActivityRequest, ChildRequest, Message, OpenPromise, Publication, Withdrawal

Field: TypeAlias = Literal["promises", "closed", "children", "messages", "publications", "withdrawals"]
Wanted: TypeAlias = OpenPromise | str | ChildRequest | Message | Publication | Withdrawal


class Outbox:
    """Requests that were made since the last commit. Each goes with an entry, and is dropped if that is not written."""

    __slots__ = ("_others", "activities")

    def __init__(self) -> None:
        self.activities: dict[int, ActivityRequest] = {}
        self._others: list[tuple[int, Field, Wanted]] = []

    def empty(self) -> None:
        """Begin anew: what was in it is committed."""
        if self.activities:
            self.activities = {}
        if self._others:
            self._others = []

    def add(self, seq: int, field: Field, wanted: Wanted) -> None:
        """Ask for something together with the entry *seq*."""
        self._others.append((seq, field, wanted))

    def take_back(self, seq: int, field: Field) -> bool:
        """Ask no longer for what went with an entry; whether it had not been told to the world yet."""
        before = len(self._others)
        self._others = [(asked, kind, one) for asked, kind, one in self._others if (asked, kind) != (seq, field)]
        return len(self._others) < before

    def fields(self, last_seq: int) -> dict[str, Any]:
        """Return what goes with the entries up to *last_seq*, as fields of an outcome."""
        told: dict[str, Any] = {}
        for seq, field, wanted in self._others:
            if seq <= last_seq:
                told[field] = (*told.get(field, ()), wanted)
        return told
