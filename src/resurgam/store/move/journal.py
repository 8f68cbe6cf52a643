"""What a store remembers of a move from it, so that an interrupted one can be finished, and only one runs at a time."""

from secrets import token_hex
from typing import Final

import msgspec

from resurgam.core.clock import Clock
from resurgam.core.errors import StoreError
from resurgam.store.identity import identity_of
from resurgam.store.lock import Lock
from resurgam.store.protocol import Values

_RECORD: Final = "move"


class Record(msgspec.Struct, frozen=True):
    """A move that has begun. *store* is the identity of the target, *url* is for people.

    *entity_ids* and *closed* say what moves, as in `Options`; a move that finishes an interrupted one has both.
    """

    id: str
    store: str
    url: str
    entity_ids: frozenset[str] = frozenset()
    closed: bool = False

    def joined(self, entity_ids: frozenset[str], *, closed: bool) -> "Record":
        """Return a record that moves these too."""
        everything = not (self.entity_ids and entity_ids)
        names = frozenset[str]() if everything else self.entity_ids | entity_ids
        return msgspec.structs.replace(self, entity_ids=names, closed=self.closed or closed)

    @property
    def mark(self) -> str:
        """The end of the reason of every pause that this move makes."""
        return f"(move {self.id})"


async def begin(source: Values, target: Values, url: str, entity_ids: frozenset[str], *, closed: bool) -> Record:
    """Return the record of the move, an earlier one if that was interrupted; raise `StoreError` if another is not finished."""
    here, there = await identity_of(source), await identity_of(target)
    if here == there:
        raise StoreError("both URLs lead to the same store; name another one to move to")
    back = await unfinished(target)
    if back is not None and back.store == here:
        raise StoreError("a move in the opposite direction was interrupted; finish it first, with both URLs exchanged")
    fresh = Record(id=token_hex(6), store=there, url=url, entity_ids=entity_ids, closed=closed)
    stored = await source.put_if_absent(_RECORD, msgspec.json.encode(fresh))
    record = msgspec.json.decode(stored, type=Record)
    if record.store != there:
        raise StoreError(f"a move from this store to {record.url} was interrupted; finish that one first")
    joined = record.joined(entity_ids, closed=closed)
    if joined != record:
        await source.put(_RECORD, msgspec.json.encode(joined))
    return joined


async def end(source: Values) -> None:
    """Forget a move that is finished."""
    await source.delete(_RECORD)


async def unfinished(values: Values) -> Record | None:
    """Return the move out of a store that is under way or was interrupted; None if there is none."""
    stored = await values.get(_RECORD)
    return None if stored is None else msgspec.json.decode(stored, type=Record)


def lock_of(values: Values, clock: Clock) -> Lock:
    """Return the right to move runs out of a store."""
    return Lock(values, clock, key="move-lock", work="moving runs out of this store", strict=True)
