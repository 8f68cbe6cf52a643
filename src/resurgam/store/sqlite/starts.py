"""Starts: executions that are created, claimed by the worker of their client and committed for the first time at once.

Most executions begin so, with an id that is new and a first commit that is a step, or that only sleeps. Such a start is one
row, inserted as it is after its commit. It has this path of its own, which equals `create`, a claim and `commit` one
after the other; whatever is unusual about it, they decide.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.encoding import encode
from resurgam.store.rules import first_run
from resurgam.store.sqlite.activities import is_busy
from resurgam.store.sqlite.commit import commit
from resurgam.store.sqlite.create import create
from resurgam.store.sqlite.history import encode_log
from resurgam.store.sqlite.instances import find, tag
from resurgam.store.sqlite.rows import instance_of
from resurgam.store.sqlite.steps import Claimed, claimed_by, is_plain
from resurgam.store.sqlite.transaction import Transaction

Work: TypeAlias = Callable[[Transaction], r.Created | r.Exists]


def prepare_start(part: r.Creation) -> Work:
    """Return what creates an execution in a transaction."""
    first, offer = part.first, part.offer
    if first is None or offer is None or part.inbox or part.follows is not None:
        return partial(create_and_commit, part=part)
    outcome, eager = first.outcome, first.eager
    # A sleeper, or a step that claims all that it schedules.
    usual = is_plain(outcome) and len(eager) == len(outcome.activities) and not first.retries
    if usual and eager:
        usual = eager == {request.ref for request in outcome.activities}
    at_once = part.started.queue in offer.queues and (first.epoch, first.base_seq, first.wake) == (1, 1, 0)
    if not usual or not at_once:
        return partial(create_and_commit, part=part)
    instance = r.Instance.of(part.started)
    if instance.status is not Status.RUNNING:
        return partial(create_and_commit, part=part)
    return _start(part, first, instance)


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


class Start(msgspec.Struct, gc=False, frozen=True):
    """An execution that is ready to be written."""

    part: r.Creation
    claimed: Claimed
    keeps: bool
    entries: Sequence[object]
    columns: tuple[object, ...]
    answer: r.Created

    def __call__(self, t: Transaction) -> r.Created | r.Exists:
        """Create the execution."""
        instance, session, changes, keeps = self.answer.instance, t.session, t.changes, self.keeps
        for queue in self.claimed.queues:
            if is_busy(t, queue):
                return create_and_commit(t, self.part)
        if t.idle_queue == instance.queue and not changes.work and (changes.moment is None or changes.moment > t.now):
            free = not session.finds("entity_known", (instance.entity_id,))  # nothing has come into the queue since
        else:
            free = session.finds("may_begin_at_once", (instance.entity_id, instance.queue, t.now))
        if not free:
            return create_and_commit(t, self.part)
        t.idle_queue = instance.queue
        lease = (t.owner, t.lease_until) if keeps else ("", "")
        session.run("begin_committed", self.columns + lease)
        if instance.tags:
            tag(session, instance)
        session.append(self.entries)
        if self.claimed.rows:
            self.claimed.write(t, instance.execution_id)
        if keeps:
            changes.due(t.lease_until)
        if instance.wake_at is not None:
            changes.due(instance.wake_at)
        changes.grown.append(instance.execution_id)
        return self.answer


def _start(part: r.Creation, first: r.Commit, instance: r.Instance) -> Start:
    outcome, log, claimed = first.outcome, (part.started, *first.outcome.events), claimed_by(first)
    schemas = outcome.signal_schemas
    after = replace(
        instance,
        last_seq=len(log),
        wake_at=outcome.wake_at,
        signal_schemas=instance.signal_schemas if schemas is None else schemas,
    )
    return Start(
        part,
        claimed,
        bool(first.eager) or not first.release,
        encode_log(instance.execution_id, log),
        (*_columns_of(after, schemas), claimed.covered or ""),
        r.Created(
            instance=after,
            claim=r.Claim(instance=instance, epoch=1, wake=0, log=(part.started,)),
            committed=r.Committed(wake=0, tasks=claimed.tasks),
        ),
    )


def _columns_of(instance: r.Instance, schemas: Mapping[str, Raw] | None) -> tuple[object, ...]:
    """Return the columns of ``begin_committed`` that are known before the transaction."""
    parent, wake_at = instance.parent, instance.wake_at
    return (
        instance.execution_id,
        instance.entity_id,
        instance.run_id,
        instance.tree_id,
        instance.generation,
        instance.attempt,
        instance.kind,
        instance.name,
        instance.queue,
        instance.created_at,
        instance.last_seq,
        "" if wake_at is None else wake_at,
        encode(instance.tags) if instance.tags else "{}",
        "" if parent is None else encode(parent),
        "" if parent is None else parent.entity_id,
        instance.run_id if parent is None else first_run(instance),
        "" if schemas is None else encode(schemas),
    )
