"""Answers that an execution has before its code has asked: of an earlier attempt of its run, or of a child of one."""

from collections.abc import Sequence
from heapq import heappop, heappush

import msgspec

from resurgam.core import event as events
from resurgam.core.commands import address_of
from resurgam.core.event import decode_event
from resurgam.core.location import Location
from resurgam.core.outcome import Entry


class Carryover:
    """What is carried over, by the place and the kind of the call that it answers."""

    def __init__(self, carried: Sequence[events.Carried], children: Sequence[events.EarlierChild] = ()) -> None:
        self._kept = {(one.location, one.kind): (order, one) for order, one in enumerate(carried) if not one.times}
        self.undone = {one.location: one.times for one in carried if one.times}
        # Children that an earlier attempt began, by the place of its call.
        self._children = {str(one.location): one for one in children}
        # Answers that came from outside before their call was made, by the address that they came with.
        self._held: dict[str, Entry] = {}
        self._children = {str(one.location): one for one in children}
        # Plain attributes, since every step asks: whether anything is carried over at all, what of it is due, and the
        # calls that are answered by it.
        self.anything = bool(self._kept)
        self.due: list[tuple[int, int, events.Answer | None, Entry | None]] = []
        self.answered: set[int] = set()

    def hold(self, address: str, entry: Entry) -> None:
        """Keep an answer until its call is made; it stays in the inbox till then."""
        self._held[address] = entry
        self.anything = True

    def holds(self, entry: Entry) -> bool:
        """Whether an entry of the inbox is being kept."""
        return any(held.id == entry.id for held in self._held.values())

    @property
    def held(self) -> list[Entry]:
        """What is kept of the inbox."""
        return list(self._held.values())

    # Children of earlier attempts.

    def expects(self, answer: events.ChildAnswer) -> bool:
        """Whether it is the end of a child that an earlier attempt began, and that may be called for yet."""
        child = self._children.get(answer.child)
        return child is not None and child.by == answer.by

    def adopted(self, call: events.ChildScheduled) -> events.EarlierChild | None:
        """Return the child of an earlier attempt that a call has taken up."""
        child = self._children.get(str(call.location))
        return child if child is not None and child.run_id == call.run_id else None

    def run_of(self, place: Location, entity_id: str, name: str, digest: str | None) -> str | None:
        """Return the run of the child of an earlier attempt that is meant by the same call at the same place.

        None if there is none, or it is known to have failed: then it is begun anew.
        """
        child, held = self._children.get(str(place)), self._held.get(str(place))
        if child is None or (child.entity_id, child.name, child.digest) != (entity_id, name, digest):
            return None
        return child.run_id if held is None or isinstance(held.event, events.ChildCompleted) else None

    def ask(self, command: events.Command) -> None:
        """The code makes a call: what was carried over for it, if it asks for the same, is due now."""
        order, found = self._kept.get((command.location, command.type), (0, None))
        held = self._held.pop(address_of(command), None)
        other = isinstance(command, events.ChildScheduled) and self.adopted(command) is None
        if held is not None and other:
            # It failed, or was another child: it is out of the way, and the call is made as if it had not been.
            heappush(self.due, (len(self._kept), command.seq, None, held))
        elif held is not None:
            assert isinstance(held.event, events.Answer)
            self._add(len(self._kept), command, held.event, held)
        elif found is not None and (found.name, found.digest) == (command.name, command.digest):
            answer = decode_event(bytes(found.answer))
            assert isinstance(answer, events.Answer)
            self._add(order, command, answer, None)

    def has_said(self, command: events.Command) -> bool:
        """Whether an earlier attempt has said the same at the same place, to whom nobody can tell any more."""
        _, found = self._kept.get((command.location, command.type), (0, None))
        return found is not None and (found.name, found.digest) == (command.name, command.digest)

    def _add(self, order: int, command: events.Command, answer: events.Answer, held: Entry | None) -> None:
        self.answered.add(command.seq)
        heappush(self.due, (order, command.seq, msgspec.structs.replace(answer, ref=command.seq), held))

    def next(self) -> tuple[events.Answer | None, Entry | None] | None:
        """Return the next answer that is due, and the entry of the inbox that it was, if it was one.

        Without an answer the entry means nothing any more.
        """
        if not self.due:
            return None
        _, _, answer, held = heappop(self.due)
        return answer, held

    def times_undone(self, place: Location) -> int:
        """Return how often the step of a saga that stands around a place was taken back."""
        return next((times for step, times in self.undone.items() if step.contains(place)), 0)
