"""Change the catalog of steps.

A change is a delivery to the instance of the catalog, whose brain records or refuses it. The client that asks for a change
serves the queue of the catalog itself: no worker need run. If another client is faster, it serves this request too.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Raw

from resurgam.client.access import Access
from resurgam.core import flow_event as fe
from resurgam.core.errors import StoreError
from resurgam.core.state import Status
from resurgam.flows import model as m
from resurgam.flows import registration
from resurgam.flows.catalog import Catalog
from resurgam.flows.catalog_brain import CATALOG_TOPIC, CatalogBrain
from resurgam.flows.expressions import Expressions
from resurgam.flows.stored_catalog import CatalogReader, check_is_catalog
from resurgam.flows.validate import validate
from resurgam.runtime.system import new_id, new_ids
from resurgam.store.records import (
    Claim,
    Commit,
    Committed,
    Creation,
    Delivered,
    Delivery,
    Instance,
    Lease,
    Published,
    Release,
    Work,
)

_TRIES: Final = 10
"""How often functions are registered anew because other programs change the same steps at the same time."""


class CatalogClient:
    """The catalog of a store; *worker* is the name under which its queue is served."""

    def __init__(self, access: Access, worker: str) -> None:
        self._access = access
        self._store = access.store
        self._worker = worker
        self._reader = CatalogReader(access.store)
        self._brain = CatalogBrain()

    @property
    def execution_id(self) -> str:
        """The instance that was read last: another one if the catalog was terminated, which removes every step."""
        return self._reader.execution_id

    async def read(self) -> Catalog:
        """Return the catalog as it is now."""
        return await self._reader.read()

    async def register(self, step: m.Step) -> bool:
        """Add a step; return False if an equal one is there. Raise `AlreadyExists` for a different one."""
        _check(step)
        return await self._change(fe.StepRegistered(id=self._new_id(), step=_encoded(step)))

    async def update(self, step: m.Step) -> bool:
        """Replace the definition of a step; return False if it is the same. Raise `NotFound` for an unknown one."""
        _check(step)
        return await self._change(fe.StepUpdated(id=self._new_id(), step=_encoded(step)))

    async def remove(self, step_id: str) -> None:
        """Remove a step. Raise `NotFound` for an unknown one."""
        await self._change(fe.StepUnregistered(id=self._new_id(), step_id=step_id))

    async def set_health(self, step_id: str, status: fe.HealthStatus, error: str = "") -> bool:
        """Record the health of the service of a step; return False if it is the same. Raise `NotFound` for an unknown one."""
        request = fe.StepHealthChanged(id=self._new_id(), step_id=step_id, status=status, error=error)
        return await self._change(request)

    async def request_deletion(self, entity_id: str, *, reason: str, by: str, tree: bool) -> None:
        """Record that everything about an entity is to be deleted."""
        await self._change(
            fe.EntityDeletionRequested(id=self._new_id(), entity_id=entity_id, reason=reason, by=by, tree=tree)
        )

    async def confirm_deletion(self, entity_id: str, *, executions: int, archived: int) -> None:
        """Record that everything about an entity is deleted."""
        request = fe.EntityDeleted(id=self._new_id(), entity_id=entity_id, executions=executions, archived=archived)
        await self._change(request)

    async def put_all(self, steps: Mapping[str, m.Step]) -> None:
        """Add steps, and replace those whose definition differs; check each by itself and against all others."""
        for step in steps.values():
            _check(step)
        for _ in range(_TRIES):
            requests = self._needed(await self.read(), steps)
            if not requests:
                return
            await self._submit(requests)
        raise StoreError(
            f"the steps {', '.join(sorted(steps))} are changed by other programs all the time; let one version define them"
        )

    def _needed(self, catalog: Catalog, steps: Mapping[str, m.Step]) -> Sequence[fe.Registration]:
        """Return the changes after which the catalog has these steps; raise for one that does not fit."""
        requests: list[fe.Registration] = []
        for step in steps.values():
            known = catalog.find(step.id)
            if known != step:
                kind = fe.StepRegistered if known is None else fe.StepUpdated
                request = kind(id=self._new_id(), step=_encoded(step))
                catalog = registration.decide(catalog, request) or catalog
                requests.append(request)
        return requests

    async def _change(self, request: fe.Registration) -> bool:
        """Make a change; return whether it was needed, and raise if it is refused, here or by the brain."""
        while registration.decide(await self.read(), request) is not None:
            if request.id in await self._submit([request]):
                return True
            # Another client was faster: what it did decides whether there is still something to change.
        return False

    def _new_id(self) -> str:
        return new_id(self._access.clock.now())

    async def _submit(self, requests: Sequence[fe.Registration]) -> set[str]:
        """Deliver requests and wait until the brain has taken them; return the ids of those that it has recorded."""
        instance = await self._open()
        parts = [
            Delivery(event=request, entity_id=instance.entity_id, execution_id=instance.execution_id)
            for request in requests
        ]
        for answer in await self._store.deliver(parts):
            if not isinstance(answer, Delivered):
                raise StoreError("the catalog of steps was terminated meanwhile; register the steps again")
        await self._taken(instance, {request.id for request in requests})
        # With those that are forgotten already: a later request may have replaced them meanwhile.
        log = await self._store.inspector.history(instance, forgotten=True, after=instance.last_seq)
        return {entry.id for entry in log if isinstance(entry, fe.Registration)}

    async def _open(self) -> Instance:
        """Return the instance of the catalog, which the first change begins."""
        found = await self._reader.instance()
        if found is None:
            now = self._access.clock.now()
            run_id, execution_id, _ = new_ids(now)
            started = fe.CatalogStarted(
                seq=1,
                at=now,
                name=fe.CATALOG,
                queue=fe.CATALOG_QUEUE,
                entity_id=fe.CATALOG,
                execution_id=execution_id,
                run_id=run_id,
                tree_id=run_id,
            )
            [answer] = await self._store.create([Creation(started=started)])
            found = answer.instance
        check_is_catalog(found)
        if found.status is not Status.RUNNING:
            raise StoreError(f"the catalog of steps is {found.status}; call handle('{fe.CATALOG}').resume() first")
        return found

    async def _taken(self, instance: Instance, waiting: set[str]) -> None:
        """Serve the catalog until these requests are no longer in its inbox."""
        while waiting := waiting - await self._serve():
            # The cursor first: what is published after it cannot be missed.
            cursor = (await self._store.inspector.messages(CATALOG_TOPIC)).cursor
            work = await self._store.inspector.open_work(instance)
            unread = set() if work is None else {one.id for one in work.inbox if isinstance(one, fe.Registration)}
            waiting &= unread
            if not waiting:
                return
            await self._wait(cursor)

    async def _wait(self, cursor: str) -> None:
        """Wait until another client has served the catalog, or this one can: the other's lease has ended."""
        watches = (
            Published(topic=CATALOG_TOPIC, after=cursor),
            Work(worker=self._worker, queues=(fe.CATALOG_QUEUE,), activities=False, queries=False),
        )
        waits = [asyncio.ensure_future(self._store.wait(watch)) for watch in watches]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _serve(self) -> set[str]:
        """Advance the catalog, if it can be claimed; return the ids of the requests that were taken."""
        taken: set[str] = set()
        for claim in await self._store.claim(self._worker, (fe.CATALOG_QUEUE,), 1):
            try:
                taken |= await self._advance(claim)
            except BaseException:
                found = claim.instance
                lease = Lease(entity_id=found.entity_id, execution_id=found.execution_id, epoch=claim.epoch)
                await self._store.release([Release(lease=lease)])
                raise
        return taken

    async def _advance(self, claim: Claim) -> set[str]:
        found = claim.instance
        log = claim.log or await self._store.read(found)
        outcome = self._brain.record_late(log, claim.inbox, self._access.clock.now())
        commit = Commit(
            entity_id=found.entity_id,
            execution_id=found.execution_id,
            epoch=claim.epoch,
            base_seq=found.last_seq,
            wake=claim.wake,
            outcome=outcome,
            worker=self._worker,
        )
        [answer] = await self._store.commit([commit])
        if not isinstance(answer, Committed):
            return set()
        return {entry.event.id for entry in claim.inbox if isinstance(entry.event, fe.Registration)}


def _check(step: m.Step) -> None:
    """Refuse a step that can never run as it is defined."""
    validate(step, Expressions())


def _encoded(step: m.Step) -> Raw:
    return Raw(msgspec.json.encode(step))
