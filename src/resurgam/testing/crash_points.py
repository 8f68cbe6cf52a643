"""Cut a commit after any of its entries, as far as a crash there is possible.

A simulation keeps the state of its store after each entry of a commit, so that it can be resumed from there. Not every
cut is possible: what leaves the instance with one commit leaves it whole or not at all.
"""

from collections import Counter
from collections.abc import Sequence

from resurgam.core import event as events
from resurgam.core.outcome import Entry, Outcome
from resurgam.core.state import ENDS, Status
from resurgam.testing.simulated_store import StoredExecution

_ENDS = tuple(ENDS)


def cut_outcome(outcome: Outcome, number: int, execution: StoredExecution, entries: Sequence[Entry]) -> Outcome:
    """Return the part of an outcome that belongs to its first *number* events.

    Each effect belongs to an entry, and is included if that entry is.
    """
    written = outcome.events[:number]
    last, ended = written[-1].seq, any(isinstance(entry, _ENDS) for entry in written)
    cancels = (entry.seq for entry in outcome.events if isinstance(entry, events.ChildCancelRequested))
    messages = [(m, m.delivered.ref if m.delivered else next(cancels, None)) for m in outcome.messages]
    opened = {entry.promise_id for entry in written if isinstance(entry, events.PromiseCreated)}
    closed = (events.PromiseTimedOut, events.PromiseCancelled)
    closed_refs = {entry.ref for entry in written if isinstance(entry, closed)}
    created = [entry for entry in (*execution.log, *outcome.events) if isinstance(entry, events.PromiseCreated)]
    closed_ids = {entry.promise_id for entry in created if entry.seq in closed_refs}
    published = sum(seq <= last for seq in _publishing_entries(outcome))
    return Outcome(
        events=written,
        consumed=_consumed(written, entries),
        forgotten=outcome.forgotten,
        activities=tuple(request for request in outcome.activities if request.ref <= last),
        withdrawals=outcome.withdrawals if ended else (),
        promises=tuple(promise for promise in outcome.promises if promise.promise_id in opened),
        closed=tuple(promise_id for promise_id in outcome.closed if promise_id in closed_ids),
        children=tuple(request for request in outcome.children if (request.created.ref or 0) <= last),
        messages=tuple(message for message, seq in messages if (ended if seq is None else seq <= last)),
        publications=outcome.publications[:published],
        successor=outcome.successor if ended else None,
        status=outcome.status if ended else Status.RUNNING,
    )


def depends_on_memory(outcome: Outcome, held: Sequence[Entry]) -> bool:
    """Whether the answer of an operation is only in memory, and not recorded by this outcome either."""
    recorded = {_identity(entry) for entry in outcome.events}
    return any(entry.id is None and _identity(entry.event) not in recorded for entry in held)


def _publishing_entries(outcome: Outcome) -> list[int]:
    """Return the ``seq`` of the entries that the publications of an outcome belong to.

    A retry writes the calls of the attempt before again, first, but publishes nothing for them.
    """
    calls = [entry for entry in outcome.events if isinstance(entry, events.MessagePublished)]
    found = []
    for publication in reversed(outcome.publications):
        while calls and (calls[-1].name, bytes(calls[-1].value)) != (publication.topic, bytes(publication.value)):
            calls.pop()
        if calls:
            found.append(calls.pop().seq)
    return found


def is_impossible_cut(
    execution: StoredExecution, outcome: Outcome, part: Outcome, entries: Sequence[Entry], held: Sequence[Entry]
) -> bool:
    """Whether a cut between *part* and the rest of *outcome* would separate effects that are written together or not at all.

    - Effects on other instances, whose answers arrive in the order of the effects: a scheduled child is started by the same
      commit, unless that commit answers it already.
    - A message of an execution to itself, which arrives unless the same commit closes it.
    - Entries *held* in memory, from the inbox or by the worker, which are delivered as soon as the code awaits them.
    - An answer among the *entries* that is consumed without being recorded, such as the failure of a child that is started
      again: it has had its effect when it was read.
    """
    sent, all_sent = (len(whole.children) + len(whole.messages) for whole in (part, outcome))
    scheduled = {entry.seq for entry in part.events if isinstance(entry, events.ChildCommand)}
    not_started = scheduled.difference(request.created.ref for request in outcome.children)
    rest = outcome.events[len(part.events) :]
    ends = any(isinstance(entry, _ENDS) for entry in rest)
    delivered = {entry.id for entry in held if entry.id in outcome.consumed}.difference(_consumed(part.events, held))
    in_memory = {_identity(entry.event) for entry in held if entry.id is None}
    return (
        0 < sent < all_sent
        or (ends and any(message.entity_id == execution.started.entity_id for message in part.messages))
        or bool(delivered)
        or bool(_unrecorded(outcome, entries))
        or any(isinstance(e, events.ChildAnswer) and e.ref in not_started and not e.carried for e in rest)
        or any(_identity(entry) in in_memory for entry in rest)
    )


def _unrecorded(outcome: Outcome, entries: Sequence[Entry]) -> set[int | None]:
    """Return the answers to children and promises that an outcome consumes without recording them."""
    answers = {entry.id for entry in entries if isinstance(entry.event, events.ChildAnswer | events.PromiseAnswer)}
    return answers.intersection(outcome.consumed).difference(_consumed(outcome.events, entries))


def _consumed(written: Sequence[events.Event], entries: Sequence[Entry]) -> tuple[int, ...]:
    """Return the numbers of the inbox entries that were written."""
    identities = Counter(_identity(entry) for entry in written)
    consumed = []
    for entry in entries:
        if entry.id is not None and identities[_identity(entry.event)]:
            identities[_identity(entry.event)] -= 1
            consumed.append(entry.id)
    return tuple(consumed)


def _identity(event: events.Event) -> tuple[object, ...]:
    """Return the fields by which an inbox entry is recognised once it is recorded."""
    addressed = isinstance(event, events.ChildAnswer | events.PromiseAnswer)
    names = (getattr(event, field, None) for field in ("name", "id", "child", "promise_id"))
    return (event.type, None if addressed else event.ref, *names)
