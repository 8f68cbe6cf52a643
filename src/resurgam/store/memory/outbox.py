"""What an instance of the memory store wants of others, done within its commit: children, messages, a successor."""

from resurgam.core import event as events
from resurgam.core.clock import Clock
from resurgam.core.outcome import ChildRequest, Message, Outcome, Succession
from resurgam.store import records as r
from resurgam.store.memory.deliver import MemoryTelling
from resurgam.store.memory.queries import Topics
from resurgam.store.rows import Row
from resurgam.store.rules import is_child, is_meant, is_same, there
from resurgam.store.watches import topic_of


class MemoryOutbox(MemoryTelling):
    """Carries the rest of an outcome to others, and puts into the own inbox what became of it."""

    def __init__(self, clock: Clock, *, lease: int) -> None:
        super().__init__(clock, lease=lease)
        self._topics = Topics()

    def _send_out(self, row: Row, outcome: Outcome, paused: r.Pause | None) -> None:
        """Do what an outcome asks for beyond its own instance, which was *paused* before this commit, or not."""
        for promise in outcome.promises:
            self._open(row, promise)
        for promise_id in outcome.closed:
            self._close(row, promise_id)
        for request in outcome.children:
            self._put(row, self._start_child(request, paused))
        for message in outcome.messages:
            entry = self._send(row, message)
            if entry is not None:
                self._put(row, entry)
        for publication in outcome.publications:
            self._topics.publish(publication, self._clock.now())
            self._touched.add(topic_of(publication.topic))
        if outcome.successor is not None:
            self._succeed(row, outcome.successor, paused)

    def _start_child(self, request: ChildRequest, paused: r.Pause | None) -> events.Event:
        """Begin a child, unless its id is taken; return what its parent is told."""
        started = request.started
        for execution_id in self._current.get(started.entity_id, ()):
            if is_same(self._rows[execution_id].instance, started):
                return there(request.created, self._rows[execution_id].instance)
        newest = self._newest(started.entity_id)
        if newest is None or newest.instance.status.terminal:
            born = self._begin(started, r.Pause.TREE if paused is r.Pause.TREE else None)
            return there(request.created, born.instance)
        ours = started.parent is not None and is_child(newest.instance, started.parent.key)
        return there(request.created, newest.instance) if ours else request.refused

    def _send(self, sender: Row, message: Message) -> events.Event | None:
        """Tell another instance something; return what the sender is told."""
        if message.promise_id is not None:
            settled = self._settle(message.promise_id, message.event, ending=sender)
            if isinstance(settled, Row):
                return message.delivered
            return message.missing if isinstance(settled, r.Missing) else message.ended
        target = self._newest(message.entity_id)
        if target is None:
            return message.missing
        if target.instance.status.terminal or not is_meant(target.instance, message):
            return message.ended
        self._tell(target, message.event)
        return message.delivered

    def _succeed(self, row: Row, succession: Succession, paused: r.Pause | None) -> None:
        """Begin the execution that follows, with what is its own and what the one before has not read."""
        successor = self._begin(succession.started, paused)
        for event in succession.inbox:
            self._hand_on(successor, event)
        unread = [key for key, (_, entry) in row.inbox.items() if entry.event.type in succession.moves]
        for key in unread:
            self._hand_on(successor, row.inbox.pop(key)[1].event)
        self._move_promises(row, successor)
