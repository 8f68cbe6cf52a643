"""Apply the effects of a commit on others: promises, children, messages, publications, a successor."""

from collections.abc import Sequence
from typing import Final

from resurgam.core import event as events
from resurgam.core.outcome import ChildRequest, Message, Outcome, Publication, Succession
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.encoding import encode
from resurgam.store.protocol import MESSAGES_KEPT
from resurgam.store.rules import is_child, is_meant, there
from resurgam.store.sqlite import inbox
from resurgam.store.sqlite.activities import text_of
from resurgam.store.sqlite.create import begin, find_same
from resurgam.store.sqlite.deliver import apply, put_and_begin
from resurgam.store.sqlite.instances import newest
from resurgam.store.sqlite.promises import close_promises, move_promises, open_promises, settle
from resurgam.store.sqlite.rows import instance_of, pause_of
from resurgam.store.sqlite.session import Row
from resurgam.store.sqlite.transaction import Transaction
from resurgam.store.watches import topic_of

_BEGINNING: Final = {str(kind.__struct_config__.tag) for kind in (events.CancelRequested, events.WorkflowBegun)}
"""Types of events that end the wait of a scheduled instance."""


def send_effects(t: Transaction, execution_id: str, outcome: Outcome, before: Row | None) -> None:
    """Apply what an outcome does beyond its own instance.

    *before* is the row of the instance as it was before the commit; children and a successor need it.
    """
    if outcome.promises:
        open_promises(t, execution_id, outcome.promises)
    if outcome.closed:
        close_promises(t, execution_id, outcome.closed)
    for request in outcome.children:
        assert before is not None
        inbox.put(t, execution_id, _start_child(t, request, pause_of(before)))
    for message in outcome.messages:
        answer = _send(t, execution_id, message)
        if answer is not None:
            inbox.put(t, execution_id, answer)
    if outcome.publications:
        _publish(t, outcome.publications)
    if outcome.successor is not None:
        assert before is not None
        _succeed(t, before, outcome.successor)


def _start_child(t: Transaction, request: ChildRequest, paused: r.Pause | None) -> events.Event:
    """Begin a child, unless its id is taken; return the answer for its parent."""
    started = request.started
    row = newest(t.session, started.entity_id)
    known = None if row is None else instance_of(row)
    if row is not None and (same := find_same(t, started, row)) is not None:
        return there(request.created, same)
    if known is None or known.status.terminal:
        child = begin(t, started, r.Pause.TREE if paused is r.Pause.TREE else None)
        t.changes.work = True
        return there(request.created, child)
    ours = started.parent is not None and is_child(known, started.parent.key)
    return there(request.created, known) if ours else request.refused


def _send(t: Transaction, sender: str, message: Message) -> events.Event | None:
    """Deliver a message to another instance; return the answer for the sender."""
    if message.promise_id is not None:
        settled = settle(t, message.promise_id, message.event, ending=sender)
        if isinstance(settled, str):
            return message.delivered
        return message.missing if isinstance(settled, r.Missing) else message.ended
    target = newest(t.session, message.entity_id)
    if target is None:
        return message.missing
    if Status(target["status"]).terminal or not is_meant(instance_of(target), message):
        return message.ended
    apply(t, target["execution_id"], message.event)
    return message.delivered


def _publish(t: Transaction, publications: Sequence[Publication]) -> None:
    t.session.execute("expire_messages", before=t.now - MESSAGES_KEPT)
    rows = [{"topic": p.topic, "now": t.now, "body": text_of(p.value)} for p in publications]
    t.session.execute_many("publish", rows)
    t.changes.touched |= {topic_of(publication.topic) for publication in publications}


def _succeed(t: Transaction, before: Row, succession: Succession) -> None:
    """Begin the next execution of the entity, with its inbox and the unread entries of the one before."""
    successor = begin(t, succession.started, pause_of(before))
    t.changes.work = True
    for event in succession.inbox:
        put_and_begin(t, successor.execution_id, event)
    _move_inbox(t, before["execution_id"], successor.execution_id, succession.moves)
    move_promises(t, before, successor)


def _move_inbox(t: Transaction, execution_id: str, successor: str, types: Sequence[str]) -> None:
    """Move unread entries of some types to the successor, in their order, as if they came now."""
    wanted = encode(types)
    moving = {row["type"] for row in t.session.fetch("types_in_inbox", execution_id=execution_id, types=wanted)}
    if not moving:
        return
    if moving & _BEGINNING:
        t.session.execute("begin_instance", execution_id=successor)
    [raised] = t.session.fetch("raise_wake", execution_id=successor, ready_at=t.ready_at())
    t.session.execute("move_inbox", execution_id=execution_id, successor=successor, types=wanted, wake=raised["wake"])
    t.session.execute("delete_moved", execution_id=execution_id, types=wanted)
