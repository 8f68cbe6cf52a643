"""Starts: executions that are created, claimed by the worker of their client and committed for the first time at once.

Most executions begin so, with an id that is new and a first commit that is a step, or that only sleeps. Such a start is one
row, inserted as it is after its commit. It has this path of its own, which equals `create`, a claim and `commit` one
after the other; whatever is unusual about it, they decide.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from msgspec.structs import replace

from resurgam.core.event import encode_event
from resurgam.core.outcome import Outcome
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.encoding import encode
from resurgam.store.rules import first_run
from resurgam.store.sqlite.activities import is_busy
from resurgam.store.sqlite.commit import commit
from resurgam.store.sqlite.create import create
from resurgam.store.sqlite.instances import find, tag
from resurgam.store.sqlite.rows import instance_of
from resurgam.store.sqlite.steps import Claimed
from resurgam.store.sqlite.transaction import Transaction

Work: TypeAlias = Callable[[Transaction], r.Created | r.Exists]


def prepare_start(part: r.Creation) -> Work:
    """Return what creates an execution in a transaction."""
    first, offer = part.first, part.offer
    if first is None or offer is None or part.inbox or part.follows is not None:
        return partial(create_and_commit, part=part)
    outcome = first.outcome
    same = Outcome(
        events=outcome.events,
        activities=outcome.activities,
        wake_at=outcome.wake_at,
        signal_schemas=outcome.signal_schemas,
    )
    # A sleeper, or a step that claims all that it schedules.
    usual = outcome == same and first.eager == {request.ref for request in outcome.activities} and not first.retries
    at_once = part.started.queue in offer.queues and (first.epoch, first.base_seq, first.wake) == (1, 1, 0)
    if not usual or not at_once:
        return partial(create_and_commit, part=part)
    instance = r.Instance.of(part.started)
    if instance.status is not Status.RUNNING:
        return partial(create_and_commit, part=part)
    return Start(part, first, instance)


def create_and_commit(t: Transaction, part: r.Creation) -> r.Created | r.Exists:
    """Begin an execution, with its first commit if the worker that made it may serve it."""
    created = create(t, part)
    if isinstance(created, r.Exists) or created.claim is None or part.first is None:
        return created
    committed = commit(t, part.first)
    assert isinstance(committed, r.Committed), committed
    row = find(t.session, part.started.execution_id)
    assert row is not None
    return r.Created(instance=instance_of(row), claim=created.claim, committed=committed)


class Start:
    """An execution that is ready to be written."""

    __slots__ = ("_answer", "_claimed", "_columns", "_events", "_keeps", "_part")

    def __init__(self, part: r.Creation, first: r.Commit, instance: r.Instance) -> None:
        outcome, log = first.outcome, (part.started, *first.outcome.events)
        self._part = part
        self._claimed = Claimed(first)
        self._keeps = bool(first.eager) or not first.release
        self._events = [(instance.execution_id, e.seq, encode_event(e).decode()) for e in log]
        self._columns = (*_columns_of(instance, len(log), outcome), self._claimed.covered or "")
        after = replace(instance, last_seq=len(log), wake_at=outcome.wake_at)
        if outcome.signal_schemas:
            after = replace(after, signal_schemas=outcome.signal_schemas)
        self._answer = r.Created(
            instance=after,
            claim=r.Claim(instance=instance, epoch=1, wake=0, log=(part.started,)),
            committed=r.Committed(wake=0, tasks=self._claimed.tasks),
        )

    def __call__(self, t: Transaction) -> r.Created | r.Exists:
        """Create the execution."""
        instance, session = self._answer.instance, t.session
        for queue in self._claimed.queues:
            if is_busy(t, queue):
                return create_and_commit(t, self._part)
        if not session.finds("may_begin_at_once", (instance.entity_id, instance.queue, t.now)):
            return create_and_commit(t, self._part)
        lease = (t.owner, t.lease_until) if self._keeps else ("", "")
        session.run("begin_committed", self._columns + lease)
        if instance.tags:
            tag(session, instance)
        session.put_off("append_event", self._events)
        if self._claimed.rows:
            self._claimed.write(t, instance.execution_id)
        changes = t.changes
        changes.due(t.lease_until if self._keeps else None)
        changes.due(instance.wake_at)
        changes.grown.append(instance.execution_id)
        return self._answer


def _columns_of(instance: r.Instance, last_seq: int, outcome: Outcome) -> tuple[object, ...]:
    """Return the columns of ``begin_committed`` that are known before the transaction."""
    parent, schemas = instance.parent, outcome.signal_schemas
    return (
        *(instance.execution_id, instance.entity_id, instance.run_id, instance.tree_id, instance.generation),
        *(instance.attempt, instance.kind, instance.name, instance.queue, instance.created_at, last_seq),
        *("" if outcome.wake_at is None else outcome.wake_at, encode(instance.tags) if instance.tags else "{}"),
        *(("", "") if parent is None else (encode(parent), parent.entity_id)),
        *(first_run(instance), "" if schemas is None else encode(schemas)),
    )
