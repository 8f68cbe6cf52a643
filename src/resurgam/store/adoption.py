"""The rules by which stores adopt executions from another store.

- An execution that is in the store already stays as it is. One that is archived there is replaced by a copy with its whole
  log, and not by an older copy: that would bring it back to life.
- An entity has at most one open execution: a second one, in the store or in the same part, refuses the whole part.
- A promise that an execution of another run holds refuses the whole part, so that no import can redirect it. Within one
  run the newest attempt holds it.
- Both sides keep the order of an entity's executions; between them the time of creation decides, and an open one is
  always the newest.
"""

from collections.abc import Callable, Iterable, Sequence
from heapq import merge

import msgspec

from resurgam.store import records as r


class AdoptionPlan(msgspec.Struct, frozen=True):
    """The copies to insert, the answer, and the order of the entity's executions, oldest first.

    *restored* are archived executions among those to insert: their rows are deleted first.
    """

    copies: Sequence[r.Copy]
    answer: r.Adopted
    order: list[str]
    restored: Sequence[str] = ()


def plan_adoption(
    part: r.Adoption,
    find: Callable[[str], r.Instance | None],
    executions_of: Callable[[str], Sequence[r.Instance]],
    holder_of: Callable[[str], r.Instance | None],
) -> AdoptionPlan | r.Exists:
    """Return how to adopt a part, or the execution that refuses it.

    *find* returns an execution by its id, *executions_of* those of an entity, oldest first, *holder_of* the execution
    that a promise belongs to.
    """
    found = {copy.instance.execution_id: find(copy.instance.execution_id) for copy in part.copies}
    restored = [
        copy.instance.execution_id
        for copy in part.copies
        if (there := found[copy.instance.execution_id]) is not None and _restores(copy, there)
    ]
    here = found | dict.fromkeys(restored)
    new = {copy.instance.execution_id: copy for copy in part.copies if here[copy.instance.execution_id] is None}
    known = executions_of(part.entity_id)
    coming = [copy.instance for name, copy in new.items() if name not in restored]  # those keep their place
    open_ones = [instance for instance in (*known, *coming) if not instance.status.terminal]
    if len(open_ones) > 1:
        return r.Exists(instance=open_ones[0])
    order = [instance.execution_id for instance in merge(known, coming, key=_age)]
    copies = []
    for copy in new.values():
        holders = {promise.promise_id: holder_of(promise.promise_id) for promise in copy.promises}
        for holder in holders.values():
            if holder is not None and holder.run_id != copy.instance.run_id:
                return r.Exists(instance=holder)
        copies.append(_without(copy, holders))
    return AdoptionPlan(copies, r.Adopted(arrivals=_arrivals(part.copies, here)), order, restored)


def _restores(copy: r.Copy, there: r.Instance) -> bool:
    """Whether a copy has the whole history of an archived execution; the entries about its archiving may be missing."""
    one = copy.instance
    return (
        there.archived is not None
        and bool(copy.log)
        and one.deactivated
        and (one.entity_id, one.status, one.closed_at) == (there.entity_id, there.status, there.closed_at)
        and one.last_seq >= there.last_seq - 1
    )


def _without(copy: r.Copy, holders: dict[str, r.Instance | None]) -> r.Copy:
    """Return a copy without the promises that a later attempt of its run holds in the store."""
    attempt = copy.instance.attempt
    kept = tuple(p for p in copy.promises if (holder := holders[p.promise_id]) is None or holder.attempt < attempt)
    return msgspec.structs.replace(copy, promises=kept)


def _arrivals(copies: Iterable[r.Copy], here: dict[str, r.Instance | None]) -> tuple[r.Arrival, ...]:
    found = {copy.instance.execution_id: (copy.instance, here[copy.instance.execution_id]) for copy in copies}
    return tuple(r.Arrival(instance=known or sent, new=known is None) for sent, known in found.values())


def _age(instance: r.Instance) -> tuple[bool, int]:
    return not instance.status.terminal, instance.created_at
