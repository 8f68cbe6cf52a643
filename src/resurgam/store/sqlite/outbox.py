"""What an instance wants of others, done within its commit: children, messages, publications, a successor."""

from collections.abc import Sequence

from resurgam.core import event as events
from resurgam.core.outcome import ChildRequest, Message, OpenPromise, Outcome, Publication, Succession
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.encoding import encode
from resurgam.store.protocol import MESSAGES_KEPT
from resurgam.store.rules import is_child, is_meant, there
from resurgam.store.sqlite.activities import text_of
from resurgam.store.sqlite.deliver import Telling
from resurgam.store.sqlite.rows import columns_of_promise, instance_of, pause_of
from resurgam.store.sqlite.session import Row
from resurgam.store.watches import topic_of


class Outbox(Telling):
    """Carries the rest of an outcome to others, and puts into the own inbox what became of it."""

    def _send_out(self, execution_id: str, outcome: Outcome, before: Row | None) -> None:
        """Do what an outcome asks for beyond its own instance, whose row was *before* this commit, if that matters."""
        self._promise(execution_id, outcome.promises, outcome.closed)
        for request in outcome.children:
            assert before is not None
            self._put(execution_id, self._start_child(request, pause_of(before)))
        for message in outcome.messages:
            entry = self._send(execution_id, message)
            if entry is not None:
                self._put(execution_id, entry)
        if outcome.publications:
            self._publish(outcome.publications)
        if outcome.successor is not None:
            assert before is not None
            self._succeed(before, outcome.successor)

    def _promise(self, execution_id: str, opened: Sequence[OpenPromise], closed: Sequence[str]) -> None:
        if opened:
            self._session.many("open_promise", [columns_of_promise(execution_id, promise) for promise in opened])
        if closed:
            self._close(execution_id, closed)

    def _start_child(self, request: ChildRequest, paused: r.Pause | None) -> events.Event:
        """Begin a child, unless its id is taken; return what its parent is told."""
        started = request.started
        row = self._newest(started.entity_id)
        newest = None if row is None else instance_of(row)
        if row is not None and (same := self._same(started, row)) is not None:
            return there(request.created, same)
        if newest is None or newest.status.terminal:
            born = self._begin(started, r.Pause.TREE if paused is r.Pause.TREE else None)
            self.changes.work = True
            return there(request.created, born)
        ours = started.parent is not None and is_child(newest, started.parent.key)
        return there(request.created, newest) if ours else request.refused

    def _send(self, sender: str, message: Message) -> events.Event | None:
        """Tell another instance something; return what the sender is told."""
        if message.promise_id is not None:
            settled = self._settle(message.promise_id, message.event, ending=sender)
            if isinstance(settled, str):
                return message.delivered
            return message.missing if isinstance(settled, r.Missing) else message.ended
        target = self._newest(message.entity_id)
        if target is None:
            return message.missing
        if Status(target["status"]).terminal or not is_meant(instance_of(target), message):
            return message.ended
        self._tell(target["execution_id"], message.event)
        return message.delivered

    def _publish(self, publications: Sequence[Publication]) -> None:
        self._session.do("forget_messages", before=self._now - MESSAGES_KEPT)
        rows = [{"topic": p.topic, "now": self._now, "body": text_of(p.value)} for p in publications]
        self._session.many("publish", rows)
        self.changes.touched |= {topic_of(publication.topic) for publication in publications}

    def _succeed(self, before: Row, succession: Succession) -> None:
        """Begin the execution that follows, with what is its own and what the one before has not read."""
        successor = self._begin(succession.started, pause_of(before))
        self.changes.work = True
        for event in succession.inbox:
            self._hand_on(successor.execution_id, event)
        self._move_inbox(before["execution_id"], successor.execution_id, succession.moves)
        self._move_promises(before, successor)

    def _move_inbox(self, execution_id: str, successor: str, types: Sequence[str]) -> None:
        """Hand on what is unread of some types, as if it came now, in its order."""
        wanted = encode(types)
        moving = {row["type"] for row in self._session.all("types_in_inbox", execution_id=execution_id, types=wanted)}
        if not moving:
            return
        if moving & _EARLY:
            self._session.do("begin_instance", execution_id=successor)
        [raised] = self._session.all("raise_wake", execution_id=successor, turn=self.turn())
        self._session.do(
            "move_inbox", execution_id=execution_id, successor=successor, types=wanted, wake=raised["wake"]
        )
        self._session.do("forget_moved", execution_id=execution_id, types=wanted)


_EARLY = {str(kind.__struct_config__.tag) for kind in (events.CancelRequested, events.WorkflowBegun)}
"""What ends the waiting of an instance that is put off."""
