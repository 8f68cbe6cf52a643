"""What is to be done with executions that come from another store: the rules that every backend follows.

- An execution that is here already is left alone, whatever has become of it.
- An entity has one open execution at most: a second one, here or in the same part, refuses the whole part.
- The order of an entity's executions is kept on both sides; between the sides the moment of creation decides, and an
  open one is always the newest.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import merge

from resurgam.store import records as r


@dataclass(frozen=True, slots=True)
class Arriving:
    """The copies that are new, what to answer, and the executions of each entity, oldest first."""

    copies: Sequence[r.Copy]
    answer: r.Adopted
    orders: dict[str, list[str]]


def sort_out(
    part: r.Adoption,
    find: Callable[[str], r.Instance | None],
    executions_of: Callable[[str], Sequence[r.Instance]],
) -> Arriving | r.Exists:
    """Say what of a part is new here, or which open execution stands in its way.

    *find* returns an execution by its id, *executions_of* those of an entity, oldest first.
    """
    here = {copy.instance.execution_id: find(copy.instance.execution_id) for copy in part.copies}
    new = {copy.instance.execution_id: copy for copy in part.copies if here[copy.instance.execution_id] is None}
    orders: dict[str, list[str]] = {}
    for entity_id in {copy.instance.entity_id for copy in new.values()}:
        known = executions_of(entity_id)
        coming = [copy.instance for copy in new.values() if copy.instance.entity_id == entity_id]
        open_ones = [instance for instance in (*known, *coming) if not instance.status.terminal]
        if len(open_ones) > 1:
            return r.Exists(instance=open_ones[0])
        orders[entity_id] = [instance.execution_id for instance in merge(known, coming, key=_age)]
    return Arriving(list(new.values()), r.Adopted(arrivals=_arrivals(part.copies, here)), orders)


def _arrivals(copies: Iterable[r.Copy], here: dict[str, r.Instance | None]) -> tuple[r.Arrival, ...]:
    found = {copy.instance.execution_id: (copy.instance, here[copy.instance.execution_id]) for copy in copies}
    return tuple(r.Arrival(instance=known or sent, new=known is None) for sent, known in found.values())


def _age(instance: r.Instance) -> tuple[bool, int]:
    return not instance.status.terminal, instance.created_at
