"""Apply the effects of a commit on others: promises, children, messages, publications, a successor."""

from collections.abc import Sequence
from typing import Final

from resurgam.core import event as events
from resurgam.core.event import decode_event, encode_event
from resurgam.core.outcome import ChildRequest, Message, Outcome, Succession
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.encoding import encode
from resurgam.store.rules import (
    answer_child,
    child_pause,
    child_started,
    is_addressed,
    kept_answer,
)
from resurgam.store.sqlite import inbox
from resurgam.store.sqlite.create import begin
from resurgam.store.sqlite.deliver import apply, put_and_begin
from resurgam.store.sqlite.instances import newest
from resurgam.store.sqlite.promises import close_promises, move_promises, open_promises, settle
from resurgam.store.sqlite.rows import instance_of, pause_of
from resurgam.store.sqlite.session import Row
from resurgam.store.sqlite.topics import publish
from resurgam.store.sqlite.transaction import Transaction

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
    if (kept := kept_answer(outcome)) is not None:
        t.session.execute("keep_answer", execution_id=execution_id, body=encode_event(kept).decode())
    for request in outcome.children:
        assert before is not None
        # The id of an instance that goes on in a successor, begun below, stays taken.
        taken = outcome.successor is not None and request.started.entity_id == before["entity_id"]
        for answer in _start_child(t, request, pause_of(before), taken=taken):
            inbox.put(t, execution_id, answer)
    for message in outcome.messages:
        reply = _send(t, execution_id, message)
        if reply is not None:
            inbox.put(t, execution_id, reply)
    if outcome.publications:
        publish(t, outcome.publications)
    if outcome.successor is not None:
        assert before is not None
        _succeed(t, before, outcome.successor)


def _start_child(
    t: Transaction, request: ChildRequest, paused: r.Pause | None, *, taken: bool
) -> Sequence[events.Event]:
    """Start a child, unless it ran for this request before or its id is taken; return the answers for its parent."""
    started = request.started
    row = newest(t.session, started.entity_id)
    known = None if row is None else instance_of(row)
    child = {"entity_id": started.entity_id, "run_id": started.run_id}
    ran = [] if row is None else [instance_of(first) for first in t.session.fetch("first_of_child", **child)]
    same = ran[0] if ran else None
    answer = answer_child(request, same, known, closed=not taken and known is not None and known.status.terminal)
    if answer is None:
        begun = begin(t, started, child_pause(paused))
        t.changes.work = True
        return [child_started(request, begun)]
    ends = t.session.fetch("answer_of_child", **child) if ran else ()
    return [answer, *(decode_event(end["body"]) for end in ends)]


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
    if Status(target["status"]).terminal or not is_addressed(instance_of(target), message):
        return message.ended
    apply(t, target["execution_id"], message.event)
    return message.delivered


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
