"""Sends an update and waits for what its handler gives, through whatever becomes of the execution meanwhile."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgspec import Raw

from resurgam.client import line
from resurgam.client.access import ANY, Access
from resurgam.core import event as events
from resurgam.core.errors import AlreadyExists, NotFound, ResultTimeout, UpdateRejected
from resurgam.core.failure import rebuild
from resurgam.core.state import ENDS
from resurgam.store.records import Delivery, Ended, Growing, Instance, Missing

_EARLIER: Final = 4
"""Executions of a line in which an update of a given id is looked for: whoever repeats one does so soon."""

Outcome = events.UpdateCompleted | events.UpdateRejected


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One update, on its way. *pinned*: it is for one run only."""

    access: Access
    name: str
    id: str
    written: Raw
    pinned: bool
    until: int | None

    async def repeat(self, instance: Instance) -> Any:
        """Return what became of the update of this id, if it was sent before; else send it."""
        execution_id: str | None = instance.execution_id
        for _ in range(_EARLIER):
            log = await self.access.store.history(execution_id, forgotten=True) if execution_id else []
            self._check_name(log)
            outcome = self._outcome(log)
            if outcome is not None:
                return self._read(outcome)
            if execution_id == instance.execution_id and self._accepted(log):
                return await self._wait(instance, 0)
            first = log[0] if log else None
            execution_id = first.previous if isinstance(first, events.WorkflowStarted) else None
        return await self.send(instance)

    async def send(self, instance: Instance) -> Any:
        """Put the update into the inbox of the current execution, and wait for its outcome."""
        event = events.UpdateAccepted(at=self.access.clock.now(), name=self.name, id=self.id, input=self.written)
        while True:
            to = Delivery(event=event, entity_id=instance.entity_id, execution_id=instance.execution_id)
            [answer] = await self.access.store.deliver([to])
            if isinstance(answer, Missing):
                raise NotFound(f"there is no workflow with id {instance.entity_id!r} any more")
            if not isinstance(answer, Ended):
                return await self._wait(instance, instance.last_seq)
            following = await self._following(instance)
            if following.execution_id == instance.execution_id:
                raise NotFound(f"workflow {instance.entity_id!r} has ended ({answer.status}) and takes nothing more")
            instance = following

    async def _following(self, instance: Instance) -> Instance:
        return await (line.newest_of_run if self.pinned else line.newest)(self.access.store, instance)

    async def _wait(self, instance: Instance, seen: int) -> Any:
        """Read what is recorded after entry *seen* until the outcome is there."""
        begun = grown = False
        while True:
            entries = await self._read_on(instance.execution_id, seen, grown=grown)
            outcome = self._outcome(entries)
            if outcome is not None:
                return self._read(outcome)
            begun = begun or self._accepted(entries)
            seen = entries[-1].seq if entries else seen
            ended = next((entry for entry in entries if type(entry) in ENDS), None)
            if ended is not None:
                instance, seen, begun = await self._go_on(instance, ended, begun=begun), 0, False
                continue
            grown = await self.access.store.wait(Growing(execution_id=instance.execution_id, last_seq=seen), self.until)
            if not grown:
                raise ResultTimeout(
                    f"update {self.name!r} of workflow {instance.entity_id!r} is not done yet; it goes on: "
                    f"repeat it with id={self.id!r} to wait for it again"
                )

    async def _read_on(self, execution_id: str, seen: int, *, grown: bool) -> Sequence[events.Event]:
        """Return every entry after *seen*, also what a loop has forgotten since; there must be some if it has *grown*."""
        entries = await self.access.store.read(execution_id, seen)
        whole = entries[-1].seq - seen == len(entries) if entries else not grown
        if whole:
            return entries
        kept = [entry for entry in await self.access.store.history(execution_id, forgotten=True) if entry.seq > seen]
        if not kept:
            raise NotFound(f"what became of update {self.name!r} (id {self.id!r}) is not kept any more")
        return kept

    async def _go_on(self, instance: Instance, ended: events.Event, *, begun: bool) -> Instance:
        """Return the execution that the update was handed on to: what was not begun is, when there is another one."""
        # A retry is told anew what was begun in the attempt before.
        lost = begun and not isinstance(ended, events.WorkflowRetried)
        following = instance if lost else await self._following(instance)
        if following.execution_id == instance.execution_id:
            raise NotFound(
                f"update {self.name!r} came to nothing: workflow {instance.entity_id!r} ended ({ended.type}) before "
                f"its handler {'returned' if begun else 'had begun'}"
            )
        return following

    def _check_name(self, log: Sequence[events.Event]) -> None:
        """Refuse the id of another update: what became of that one is nothing that was asked for."""
        for entry in log:
            mine = isinstance(entry, events.UpdateAccepted | events.UpdateRejected) and entry.id == self.id
            if mine and entry.name != self.name:
                raise AlreadyExists(f"id {self.id!r} is that of update {entry.name!r}; give {self.name!r} another one")

    def _accepted(self, log: Sequence[events.Event]) -> bool:
        return any(isinstance(entry, events.UpdateAccepted) and entry.id == self.id for entry in log)

    def _outcome(self, log: Sequence[events.Event]) -> Outcome | None:
        return next((entry for entry in log if isinstance(entry, Outcome) and entry.id == self.id), None)

    def _read(self, outcome: Outcome) -> Any:
        if isinstance(outcome, events.UpdateRejected):
            raise UpdateRejected(outcome.name or self.name) from rebuild(outcome.failure)
        return ANY.decode(outcome.result, f"result of update {self.name!r}")
