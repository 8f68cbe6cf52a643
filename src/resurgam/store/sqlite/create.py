"""Create executions."""

import msgspec

from resurgam.core import event as events
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.rules import Way, is_same, way_past
from resurgam.store.sqlite import history
from resurgam.store.sqlite.claim import claim_eagerly
from resurgam.store.sqlite.deliver import apply, terminate
from resurgam.store.sqlite.instances import find, newest, tag
from resurgam.store.sqlite.promises import move_promises
from resurgam.store.sqlite.rows import columns_of, instance_of
from resurgam.store.sqlite.session import Row
from resurgam.store.sqlite.transaction import Transaction


def create(t: Transaction, part: r.Creation) -> r.Created | r.Exists:
    """Begin an execution, unless its entity has one that stands in the way."""
    started = part.started
    row = newest(t.session, started.entity_id)
    if row is not None:
        same = find_same(t, started, row)
        if same is not None:
            return r.Created(instance=same)
        known = instance_of(row)
        if not _makes_way(t, known, part):
            return r.Exists(instance=_with_inbox(t, known, part))
    instance = begin(t, started)
    if part.follows is not None and row is not None:
        move_promises(t, row, instance)
    _apply_inbox(t, instance.execution_id, part)
    claim = claim_eagerly(t, instance.execution_id, instance.queue, part.offer)
    instance = _with_inbox(t, instance, part)
    if claim is None:
        t.changes.work = True
        return r.Created(instance=instance)
    return r.Created(instance=instance, claim=msgspec.structs.replace(claim, log=(started,)))


def begin(t: Transaction, started: events.Started, paused: r.Pause | None = None) -> r.Instance:
    """Insert an execution with its first entry."""
    instance = r.Instance.of(started)
    ready = 0 if instance.status is Status.SCHEDULED else t.ready_at()
    t.session.execute("create_instance", **columns_of(instance, paused), ready=ready)
    if instance.tags:
        tag(t.session, instance)
    history.append(t, instance.execution_id, (started,))
    t.changes.due(instance.wake_at)
    return instance


def find_same(t: Transaction, started: events.Started, row: Row) -> r.Instance | None:
    """Return the execution with the run and attempt of *started*, if the entity, whose newest is in *row*, has it."""
    if is_same(instance_of(row), started):
        return instance_of(row)
    rows = t.session.fetch(
        "same_execution", entity_id=started.entity_id, run_id=started.run_id, attempt=started.attempt
    )
    return instance_of(rows[0]) if rows else None


def _makes_way(t: Transaction, known: r.Instance, part: r.Creation) -> bool:
    """Whether another execution may follow; an open one is terminated for it, or receives its inbox."""
    way = way_past(known, part)
    if way is Way.REPLACE:
        assert part.replace is not None
        terminate(t, known.execution_id, part.replace)
    if way is Way.DELIVER:
        _apply_inbox(t, known.execution_id, part)
    return way in (Way.BEGIN, Way.REPLACE)


def _apply_inbox(t: Transaction, execution_id: str, part: r.Creation) -> None:
    for event in part.inbox:
        apply(t, execution_id, event)


def _with_inbox(t: Transaction, instance: r.Instance, part: r.Creation) -> r.Instance:
    """Return the instance as it is after its inbox was applied."""
    row = find(t.session, instance.execution_id) if part.inbox else None
    return instance if row is None else instance_of(row)
