"""Answers that an execution has before its code makes the calls: from an earlier attempt of its run."""

from collections.abc import Sequence
from heapq import heappop, heappush

import msgspec

from resurgam.core import event as events
from resurgam.core.commands import address_of
from resurgam.core.event import decode_event
from resurgam.core.location import Location
from resurgam.core.outcome import Entry
from resurgam.runtime.loop.verdict import Verdict


class Carryover:
    """Answer calls by what an earlier attempt got at the same location, or by what arrived before the call."""

    def __init__(
        self,
        carried: Sequence[events.Carried],
        children: Sequence[events.EarlierChild],
        verdict: Verdict,
    ) -> None:
        self._verdict = verdict
        self._kept: dict[tuple[Location, str], tuple[int, events.Carried]] = {}
        self.undone: dict[Location, int] = {}
        if carried:
            self._kept = {(one.location, one.kind): (order, one) for order, one in enumerate(carried) if not one.times}
            self.undone = {one.location: one.times for one in carried if one.times}
        # Children that an earlier attempt started, by the location of its call.
        self._children = {str(one.location): one for one in children} if children else {}
        # Answers that arrived before their calls were made, by the addresses in them.
        self._held: dict[str, Entry] = {}
        # Plain attributes, since every step reads them: whether anything is carried over, which answers are due, and
        # the calls that they answer.
        self.anything = bool(self._kept)
        self.due: list[tuple[int, int, events.Answer | None, Entry | None]] = []
        self.answered: dict[int, None] = {}

    def hold(self, address: str, entry: Entry) -> None:
        """Keep an answer until its call is made; until then it stays in the store's inbox."""
        self._held[address] = entry
        self.anything = True
        self._verdict.end_routine()

    def holds(self, entry: Entry) -> bool:
        """Whether an entry of the inbox is kept here."""
        return any(held.id == entry.id for held in self._held.values())

    @property
    def held(self) -> list[Entry]:
        """The entries of the inbox that are kept here."""
        return list(self._held.values())

    # Children of earlier attempts.

    def expects(self, answer: events.ChildAnswer) -> bool:
        """Whether an answer is of a child that an earlier attempt started, and whose call may still be made."""
        child = self._children.get(answer.child)
        return child is not None and child.by == answer.by

    def adopted(self, call: events.ChildCommand) -> events.EarlierChild | None:
        """Return the child of an earlier attempt that a call has adopted."""
        child = self._children.get(str(call.location))
        return child if child is not None and child.run_id == call.run_id else None

    def run_of(self, location: Location, entity_id: str, name: str, digest: str | None) -> str | None:
        """Return the run of an earlier attempt's child that the same call at the same location adopts.

        None if there is none, or it is known to have failed: then the call starts another one.
        """
        child, held = self._children.get(str(location)), self._held.get(str(location))
        if child is None or (child.entity_id, child.name, child.digest) != (entity_id, name, digest):
            return None
        return child.run_id if held is None or _has_result(held.event) else None

    def ask(self, command: events.Command) -> None:
        """Make the answer of a call due, if one is carried over for the same call at its location."""
        order, found = self._kept.get((command.location, command.type), (0, None))
        held = self._held.pop(address_of(command), None)
        other = isinstance(command, events.ChildCommand) and self.adopted(command) is None
        if held is not None and other:
            # It failed, or was another child: it is consumed, and the call starts one anew.
            heappush(self.due, (len(self._kept), command.seq, None, held))
        elif held is not None:
            assert isinstance(held.event, events.Answer)
            self._add(len(self._kept), command, held.event, held)
        elif found is not None and (found.name, found.digest) == (command.name, command.digest):
            answer = decode_event(bytes(found.answer))
            assert isinstance(answer, events.Answer)
            self._add(order, command, answer, None)

    def has_published(self, command: events.Command) -> bool:
        """Whether an earlier attempt has published the same message at the same location."""
        _, found = self._kept.get((command.location, command.type), (0, None))
        return found is not None and (found.name, found.digest) == (command.name, command.digest)

    def _add(self, order: int, command: events.Command, answer: events.Answer, held: Entry | None) -> None:
        self.answered[command.seq] = None
        heappush(self.due, (order, command.seq, msgspec.structs.replace(answer, ref=command.seq), held))

    def next(self) -> tuple[events.Answer | None, Entry | None] | None:
        """Return the next answer that is due, and the entry of the inbox that it came in, if any.

        An entry without an answer is to be consumed.
        """
        if not self.due:
            return None
        _, _, answer, held = heappop(self.due)
        return answer, held

    def times_undone(self, location: Location) -> int:
        """Return how often the saga step around a location was compensated."""
        return next((times for step, times in self.undone.items() if step.contains(location)), 0)


def _has_result(answer: events.Event) -> bool:
    return isinstance(answer, events.ChildAnswer) and events.child_outcome(answer) == "completed"
