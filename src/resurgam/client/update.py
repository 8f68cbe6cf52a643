"""Send an update and follow it to its outcome, one execution of the chain at a time.

A result is JSON. Without a ``type=`` of the caller it is decoded by the annotation of the handler that runs in this
process have registered under this name; if there is none, or they differ, by that of a replay of the run's history; if
the code is not registered here, as plain JSON types.
"""

from collections.abc import Sequence
from typing import Any, Generic, Literal, TypedDict, TypeVar

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from resurgam.client import chain
from resurgam.client.access import ANY, Access, check_text, deadline_after
from resurgam.core import event as events
from resurgam.core.codec import Codec
from resurgam.core.errors import AlreadyExists, NotFound, ResultTimeout, SerializationError, UpdateRejected
from resurgam.core.failure import rebuild
from resurgam.core.retry import Duration
from resurgam.core.state import ENDS
from resurgam.runtime.definitions.definition import Workflow
from resurgam.runtime.loop.outside_task import run_outside_task
from resurgam.runtime.rehearsal import query
from resurgam.store.records import Delivery, Ended, Instance, LogGrown, Missing
from resurgam.store.retention import LOOKED_UP

Outcome = events.UpdateCompleted | events.UpdateRejected
Accepted = Literal["accepted"]
Completed = Literal["completed"]
Stage = Completed | Accepted
T = TypeVar("T")


class HandlerNotStarted(NotFound):
    """The workflow closed before a handler started on the update, so the update had no effect."""


class SendOptions(TypedDict, total=False):
    """The options of `Handle.update`, beside ``type=`` and ``wait=``."""

    id: str | None
    timeout: Duration | None


def check_stage(wait: object) -> None:
    """Refuse a ``wait=`` that is not a stage of an update."""
    if wait not in ("completed", "accepted"):
        raise ValueError(f"wait must be 'completed' or 'accepted', got {wait!r}")


def encode_update(access: Access, name: str, args: Sequence[object], id: str | None) -> Raw:
    """Return the arguments of an update as JSON; refuse a name or an id that is not a non-empty string."""
    check_text(name, "update name")
    if id is not None:
        check_text(id, "update id")
    return access.encode_all(args, f"arguments of update {name!r}")


class Position(msgspec.Struct):
    """How far the sender has read the chain of executions: an execution, and the last entry read of its log.

    *handled*: a handler has started on the update. *grown*: the log has more entries than were read.
    """

    entity_id: str
    execution_id: str
    seen: int
    handled: bool = False
    grown: bool = False


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """An update that is sent to *entity_id*; if *pinned*, to one run only.

    *workflow* is the receiver's definition, if it is known here; *codec* is that of the caller's ``type=``.
    """

    access: Access
    entity_id: str
    workflow: Workflow[..., Any] | None
    name: str
    id: str
    input: Raw
    pinned: bool
    codec: Codec[Any] | None = None

    async def repeat(self, instance: Instance) -> Position:
        """Send the update unless one of this id was sent before; return where to read its outcome."""
        while True:
            found = await self.find(instance) or await self._deliver(instance)
            if found is not None:
                return found
            instance = await self._successor(instance)

    async def send(self, instance: Instance) -> Position:
        """Put the update into the inbox of the current execution; return where to read its outcome."""
        while True:
            found = await self._deliver(instance)
            if found is not None:
                return found
            instance = await self._successor(instance)

    @property
    def event(self) -> events.UpdateAccepted:
        """The entry for the receiver's inbox."""
        return events.UpdateAccepted(at=self.access.clock.now(), name=self.name, id=self.id, input=self.input)

    async def accepted(self, position: Position, until: int | None) -> None:
        """Wait until the update is accepted; raise `UpdateRejected` if it is refused."""
        while True:
            entries = await self._unread_entries(position)
            accepted, outcome = self._accepted(entries), self._outcome(entries)
            if accepted is not None:
                position.seen, position.handled, position.grown = accepted.seq, True, False
                return
            if outcome is not None:
                await self._result_of(outcome, position)
                return
            await self._advance(position, entries, until)

    async def result(self, position: Position, until: int | None) -> Any:
        """Wait for the outcome and return the handler's result, or raise `UpdateRejected`."""
        while True:
            entries = await self._unread_entries(position)
            outcome = self._outcome(entries)
            if outcome is not None:
                return await self._result_of(outcome, position)
            position.handled = position.handled or self._accepted(entries) is not None
            await self._advance(position, entries, until)

    async def find(self, instance: Instance) -> Position | None:
        """Search the newest executions of the chain for an update of this id."""
        execution_id: str | None = instance.execution_id
        for _ in range(LOOKED_UP):
            position = Position(self.entity_id, execution_id or "", 0)
            log = await self.access.store.inspector.history(position, forgotten=True) if execution_id else []
            self._check_name(log)
            found = execution_id == instance.execution_id and self._accepted(log) is not None
            if found or self._outcome(log) is not None:
                return position
            first = log[0] if log else None
            execution_id = first.previous if isinstance(first, events.Started) else None
        return None

    async def _deliver(self, instance: Instance) -> Position | None:
        """Put the update into the inbox of an execution; return None if the execution is closed."""
        to = Delivery(event=self.event, entity_id=self.entity_id, execution_id=instance.execution_id)
        [answer] = await self.access.store.deliver([to])
        if isinstance(answer, Missing):
            raise NotFound(f"workflow {self.entity_id!r} is no longer in the store")
        return None if isinstance(answer, Ended) else Position(self.entity_id, instance.execution_id, instance.last_seq)

    async def _successor(self, closed: Instance) -> Instance:
        """Return the newest execution of the chain; the update is in none of them yet."""
        newest = await (chain.newest_of_run if self.pinned else chain.newest)(self.access.store, closed)
        if newest.execution_id == closed.execution_id:
            raise NotFound(f"workflow {self.entity_id!r} is closed ({newest.status}) and accepts no more updates")
        return newest

    async def _unread_entries(self, position: Position) -> Sequence[events.Event]:
        """Return every entry after the position, including entries that a loop has forgotten since."""
        seen = position.seen
        entries = await self.access.store.read(position, seen)
        whole = entries[-1].seq - seen == len(entries) if entries else not position.grown
        if whole:
            return entries
        kept = [
            entry for entry in await self.access.store.inspector.history(position, forgotten=True) if entry.seq > seen
        ]
        if not kept:
            raise NotFound(f"the outcome of update {self.name!r} (id {self.id!r}) is no longer in the store")
        return kept

    async def _advance(self, position: Position, entries: Sequence[events.Event], until: int | None) -> None:
        """Move the position to the next execution if this one is closed, else wait until its log has grown."""
        position.seen = entries[-1].seq if entries else position.seen
        closing = next((entry for entry in entries if type(entry) in ENDS), None)
        if closing is not None:
            position.execution_id = await self._next_execution(position, closing)
            # Its log has one entry at least, unless the execution was purged.
            position.seen, position.handled, position.grown = 0, False, True
            return
        watch = LogGrown(entity_id=position.entity_id, execution_id=position.execution_id, last_seq=position.seen)
        position.grown = await self.access.store.wait(watch, until)
        if not position.grown:
            raise ResultTimeout(
                f"update {self.name!r} of workflow {self.entity_id!r} is not done yet and goes on; "
                f"repeat it with id={self.id!r} to wait for it again"
            )

    async def _next_execution(self, position: Position, closing: events.Event) -> str:
        """Return the id of the execution that received the update next.

        It is the next one of the chain, not the newest: it may have handled the update and be closed as well by now.
        """
        if self.pinned and isinstance(closing, events.WorkflowContinued):
            raise NotFound(
                f"update {self.name!r} was not handled in this run of workflow {self.entity_id!r}, which was continued "
                f"as new, in run {closing.run_id!r}; use a handle without run_id to follow it"
            )
        # The next attempt receives all updates again; a continuation only those whose handlers had not started.
        successor = None
        if not (position.handled and isinstance(closing, events.WorkflowContinued)):
            successor = await chain.next_execution(self.access.store, position, closing)
        if successor is None:
            raise (NotFound if position.handled else HandlerNotStarted)(
                f"update {self.name!r} has no result: workflow {self.entity_id!r} closed ({closing.type}) before "
                f"its handler {'returned' if position.handled else 'started'}"
            )
        return successor

    def _check_name(self, log: Sequence[events.Event]) -> None:
        """Refuse the id of an update of another name."""
        for entry in log:
            mine = isinstance(entry, events.UpdateAccepted | events.UpdateRejected) and entry.id == self.id
            if mine and entry.name != self.name:
                raise AlreadyExists(f"id {self.id!r} belongs to update {entry.name!r}; give {self.name!r} another id")

    def _accepted(self, log: Sequence[events.Event]) -> events.UpdateAccepted | None:
        return next((entry for entry in log if isinstance(entry, events.UpdateAccepted) and entry.id == self.id), None)

    def _outcome(self, log: Sequence[events.Event]) -> Outcome | None:
        return next((entry for entry in log if isinstance(entry, Outcome) and entry.id == self.id), None)

    async def _result_of(self, outcome: Outcome, position: Position) -> Any:
        """Return the decoded result of an outcome, or raise `UpdateRejected`."""
        if isinstance(outcome, events.UpdateRejected):
            raise UpdateRejected(outcome.name or self.name) from rebuild(outcome.failure)
        if self.codec is not None:
            return self.codec.decode(outcome.result, f"result of update {self.name!r}")
        return await self._decode_by_annotation(outcome.result, position)

    async def _decode_by_annotation(self, encoded: Raw, position: Position) -> Any:
        what = f"result of update {self.name!r}"
        definition = self.workflow
        if definition is None:
            return ANY.decode(encoded, what)
        known = definition.update_results.get(self.name)
        if known is not None:
            try:
                return known.decode(encoded, what)
            except SerializationError:
                pass  # another run may have registered another handler under this name
        log = await self.access.store.inspector.history(position)
        annotated = await run_outside_task(lambda: query.update_result(definition, log, self.name))
        return (annotated or ANY).decode(encoded, what)


class UpdateHandle(Generic[T]):
    """An accepted update, whose handler may still be running."""

    def __init__(self, update: Update, position: Position) -> None:
        self._update = update
        self._position = position

    def __repr__(self) -> str:
        return f"<handle of update {self.name!r} ({self.id}) of workflow {self.entity_id!r}>"

    @property
    def entity_id(self) -> str:
        """The id of the workflow."""
        return self._update.entity_id

    @property
    def name(self) -> str:
        """The name of the update."""
        return self._update.name

    @property
    def id(self) -> str:
        """The id of the update; an update sent again with this id does not run again."""
        return self._update.id

    async def result(self, timeout: Duration | None = None) -> T:
        """Wait for the handler and return its result; raise `UpdateRejected` if it raises.

        Raise `ResultTimeout`, a `TimeoutError`, after *timeout*; the update itself goes on.
        """
        until = deadline_after(self._update.access.clock, timeout)
        return await self._update.result(replace(self._position), until)  # type: ignore[no-any-return]  # codec of T
