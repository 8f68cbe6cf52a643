"""Send an update and follow it to its outcome, one execution of the chain at a time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypedDict, TypeVar

from msgspec import Raw

from resurgam.client import chain
from resurgam.client.access import Access, check_text, moment_after
from resurgam.client.answers import read_update
from resurgam.core import event as events
from resurgam.core.codec import Codec
from resurgam.core.errors import AlreadyExists, NotFound, ResultTimeout, UpdateRejected
from resurgam.core.failure import rebuild
from resurgam.core.retry import Duration
from resurgam.core.state import ENDS
from resurgam.store.records import Delivery, Ended, Instance, LogGrown, Missing
from resurgam.store.retention import LOOKED_UP

Outcome = events.UpdateCompleted | events.UpdateRejected
Accepted = Literal["accepted"]
Completed = Literal["completed"]
Stage = Completed | Accepted
T = TypeVar("T")


class NotBegun(NotFound):
    """The workflow ended before a handler had begun with the update, so that the update had no effect."""


class SendOptions(TypedDict, total=False):
    """The options of `Handle.update`, beside ``type=`` and ``wait=``."""

    id: str | None
    timeout: Duration | None


def check_stage(wait: object) -> None:
    """Refuse a stage of an update that does not exist."""
    if wait not in ("completed", "accepted"):
        raise ValueError(f"wait must be 'completed' or 'accepted', got {wait!r}")


def written_update(access: Access, name: str, args: Sequence[object], id: str | None) -> Raw:
    """Return the arguments of an update as they are recorded; refuse a name or an id that is none."""
    check_text(name, "the name of an update")
    if id is not None:
        check_text(id, "the id of an update")
    return access.write_all(args, f"arguments of update {name!r}")


@dataclass(slots=True)
class Position:
    """How far the sender has read the chain of executions that the update may be handled in."""

    execution_id: str
    seen: int
    begun: bool = False
    grown: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One update of *workflow*, on its way. *pinned*: it is for one run only. *codec* is that of the caller's ``type=``."""

    access: Access
    entity_id: str
    workflow: str
    name: str
    id: str
    written: Raw
    pinned: bool
    codec: Codec[Any] | None = None

    async def repeat(self, instance: Instance) -> Position:
        """Return where to read what became of the update of this id, if it was sent before; else send it."""
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
        """The update as it is put into an inbox."""
        return events.UpdateAccepted(at=self.access.clock.now(), name=self.name, id=self.id, input=self.written)

    async def accepted(self, position: Position, until: int | None) -> None:
        """Wait until the update is accepted; if it is refused, raise `UpdateRejected`."""
        while True:
            entries = await self._read_on(position)
            accepted, outcome = self._accepted(entries), self._outcome(entries)
            if accepted is not None:
                position.seen, position.begun, position.grown = accepted.seq, True, False
                return
            if outcome is not None:
                await self._read(outcome, position.execution_id)
                return
            await self._go_on(position, entries, until)

    async def result(self, position: Position, until: int | None) -> Any:
        """Wait for the outcome and return the handler's result, or raise `UpdateRejected`."""
        while True:
            entries = await self._read_on(position)
            outcome = self._outcome(entries)
            if outcome is not None:
                return await self._read(outcome, position.execution_id)
            position.begun = position.begun or self._accepted(entries) is not None
            await self._go_on(position, entries, until)

    async def find(self, instance: Instance) -> Position | None:
        """Look for the update of this id in the newest executions of the chain."""
        execution_id: str | None = instance.execution_id
        for _ in range(LOOKED_UP):
            log = await self.access.store.history(execution_id, forgotten=True) if execution_id else []
            self._check_name(log)
            found = execution_id == instance.execution_id and self._accepted(log) is not None
            if execution_id and (found or self._outcome(log) is not None):
                return Position(execution_id, 0)
            first = log[0] if log else None
            execution_id = first.previous if isinstance(first, events.WorkflowStarted) else None
        return None

    async def _deliver(self, instance: Instance) -> Position | None:
        """Put the update into the inbox of an execution; None if the execution has ended and another has followed it."""
        to = Delivery(event=self.event, entity_id=self.entity_id, execution_id=instance.execution_id)
        [answer] = await self.access.store.deliver([to])
        if isinstance(answer, Missing):
            raise NotFound(f"there is no workflow with id {self.entity_id!r} any more")
        return None if isinstance(answer, Ended) else Position(instance.execution_id, instance.last_seq)

    async def _successor(self, ended: Instance) -> Instance:
        """Return the execution to send the update to: the newest one, since the update is in none of them yet."""
        newest = await (chain.newest_of_run if self.pinned else chain.newest)(self.access.store, ended)
        if newest.execution_id == ended.execution_id:
            raise NotFound(f"workflow {self.entity_id!r} has ended ({newest.status}) and takes nothing more")
        return newest

    async def _read_on(self, position: Position) -> Sequence[events.Event]:
        """Return every entry after the position, including entries that a loop has forgotten since."""
        execution_id, seen = position.execution_id, position.seen
        entries = await self.access.store.read(execution_id, seen)
        whole = entries[-1].seq - seen == len(entries) if entries else not position.grown
        if whole:
            return entries
        kept = [entry for entry in await self.access.store.history(execution_id, forgotten=True) if entry.seq > seen]
        if not kept:
            raise NotFound(f"what became of update {self.name!r} (id {self.id!r}) is not kept any more")
        return kept

    async def _go_on(self, position: Position, entries: Sequence[events.Event], until: int | None) -> None:
        """Move the position to the next execution if this one has ended, else wait until its log has grown."""
        position.seen = entries[-1].seq if entries else position.seen
        ended = next((entry for entry in entries if type(entry) in ENDS), None)
        if ended is not None:
            position.execution_id = await self._next(position, ended)
            # Its log has one entry at least, unless the execution was purged.
            position.seen, position.begun, position.grown = 0, False, True
            return
        watch = LogGrown(execution_id=position.execution_id, last_seq=position.seen)
        position.grown = await self.access.store.wait(watch, until)
        if not position.grown:
            raise ResultTimeout(
                f"update {self.name!r} of workflow {self.entity_id!r} is not done yet; it goes on: "
                f"repeat it with id={self.id!r} to wait for it again"
            )

    async def _next(self, position: Position, ended: events.Event) -> str:
        """Return the execution that the update was handed on to.

        It is the one right after this one: that execution may have handled the update and ended as well by now.
        """
        if self.pinned and isinstance(ended, events.WorkflowContinued):
            raise NotFound(
                f"update {self.name!r} was not handled in this run of workflow {self.entity_id!r}, which was continued "
                f"as new, in run {ended.run_id!r}; take a handle without a run_id to follow it"
            )
        # The next attempt is sent the updates that this one had begun; a continuation only those it had not.
        following = None
        if not (position.begun and isinstance(ended, events.WorkflowContinued)):
            following = await chain.following(self.access.store, position.execution_id, ended)
        if following is None:
            raise (NotFound if position.begun else NotBegun)(
                f"update {self.name!r} came to nothing: workflow {self.entity_id!r} ended ({ended.type}) before "
                f"its handler {'returned' if position.begun else 'had begun'}"
            )
        return following

    def _check_name(self, log: Sequence[events.Event]) -> None:
        """Refuse the id of another update, whose outcome is not the one that is asked for."""
        for entry in log:
            mine = isinstance(entry, events.UpdateAccepted | events.UpdateRejected) and entry.id == self.id
            if mine and entry.name != self.name:
                raise AlreadyExists(f"id {self.id!r} is that of update {entry.name!r}; give {self.name!r} another one")

    def _accepted(self, log: Sequence[events.Event]) -> events.UpdateAccepted | None:
        return next((entry for entry in log if isinstance(entry, events.UpdateAccepted) and entry.id == self.id), None)

    def _outcome(self, log: Sequence[events.Event]) -> Outcome | None:
        return next((entry for entry in log if isinstance(entry, Outcome) and entry.id == self.id), None)

    async def _read(self, outcome: Outcome, execution_id: str) -> Any:
        if isinstance(outcome, events.UpdateRejected):
            raise UpdateRejected(outcome.name or self.name) from rebuild(outcome.failure)
        if self.codec is not None:
            return self.codec.decode(outcome.result, f"result of update {self.name!r}")
        return await read_update(self.access, self.workflow, execution_id, self.name, outcome.result)


class UpdateHandle(Generic[T]):
    """An update that was accepted, and whose handler may be at work."""

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
        """The id of the update: sent again with it, the update is not run again."""
        return self._update.id

    async def result(self, timeout: Duration | None = None) -> T:
        """Wait for the handler and return what it returns; if it raises, `UpdateRejected`.

        After *timeout* it is a `TimeoutError`; the update itself goes on.
        """
        until = moment_after(self._update.access.clock, timeout)
        return await self._update.result(replace(self._position), until)  # type: ignore[no-any-return]  # codec of T
