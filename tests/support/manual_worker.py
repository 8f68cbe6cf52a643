"""A client without any worker: what a workflow would do is committed by hand, so that each case stands on its own."""

from contextlib import asynccontextmanager
from typing import Any

import msgspec
from msgspec import Raw

from resurgam import Engine, Registry
from resurgam.core import event as events
from resurgam.core.location import Location
from resurgam.core.outcome import ChildRequest, OpenPromise, Succession
from resurgam.core.state import Status
from resurgam.core.succession import next_attempt, next_generation
from resurgam.store import records as r
from resurgam.store.memory.store import MemoryStore
from resurgam.testing import ManualClock
from resurgam.testing.contract.bench import LEASE, Bench, OpensStores, ids

FAILURE = events.Failure(type="builtins.ValueError", message="no", args=Raw(b'["no"]'))


def at(*place: int) -> dict[str, Any]:
    """Return the fields of a command at the n-th place of the root."""
    return {"location": Location(*((n,) for n in place)), "command": f"Some({place[-1]})"}


class ManualWorker(Bench):
    """What stands in for a worker and for the code of workflows, in any queue."""

    async def take(self, entity_id: str) -> r.Claim:
        """Claim the execution of this entity, which must be ready; others stay as they are."""
        claims = {claim.instance.entity_id: claim for claim in await self.claim(queues=["default", "slow"])}
        taken = claims.pop(entity_id)
        for other in claims.values():
            await self.release(other)
        return taken

    async def does(self, entity_id: str, *log: events.Event, **outcome: Any) -> r.Claim:
        """Have an execution consume its inbox into its log, and then record this."""
        claim = await self.take(entity_id)
        heard = [entry.event for entry in claim.inbox]
        seq = claim.instance.last_seq
        numbered = [_numbered(entry, seq + n) for n, entry in enumerate([*heard, *log], start=1)]
        await self.committed(claim, *numbered, consumed=ids(claim.inbox), **outcome)
        return claim

    async def completes(self, entity_id: str, result: bytes = b"null") -> None:
        await self.does(entity_id, events.WorkflowCompleted(result=Raw(result)), status=Status.COMPLETED)

    async def fails(self, entity_id: str, failure: events.Failure = FAILURE) -> None:
        await self.does(entity_id, events.WorkflowFailed(failure=failure), status=Status.FAILED)

    async def retries(self, entity_id: str, next_id: str) -> None:
        """Have an execution fail and be tried again at once."""
        claim = await self.take(entity_id)
        log = [*await self.store.read(claim.instance), *(entry.event for entry in claim.inbox)]
        started, inbox = next_attempt(log, execution_id=next_id, at=self.clock.now(), python="3.11")
        heard = [_numbered(e.event, claim.instance.last_seq + n) for n, e in enumerate(claim.inbox, start=1)]
        ended = events.WorkflowRetried(
            seq=claim.instance.last_seq + len(heard) + 1, failure=FAILURE, execution_id=next_id, next_at=0
        )
        await self.committed(
            claim,
            *heard,
            ended,
            consumed=ids(claim.inbox),
            status=Status.FAILED,
            successor=Succession(started=started, inbox=inbox, moves=("update_accepted",)),
        )

    async def continues(self, entity_id: str, run_id: str) -> None:
        """Have an execution continue as new; what it has not read moves along."""
        claim = await self.take(entity_id)
        log = await self.store.read(claim.instance)
        assert isinstance(log[0], events.WorkflowStarted)
        started = next_generation(
            log[0],
            run_id=run_id,
            execution_id=f"{run_id}-x",
            at=self.clock.now(),
            python="3.11",
            input=Raw(b"[]"),
            tags=log[0].tags,
        )
        ended = events.WorkflowContinued(
            seq=claim.instance.last_seq + 1, run_id=run_id, execution_id=started.execution_id
        )
        moves = ("signal_received", "update_accepted", "cancel_requested")
        await self.committed(claim, ended, status=Status.CONTINUED, successor=Succession(started=started, moves=moves))

    async def promises(self, entity_id: str, name: str, promise_id: str) -> None:
        """Have an execution wait for a promise."""
        created = events.PromiseCreated(name=name, promise_id=promise_id, **at(1))
        await self.does(entity_id, created, promises=(OpenPromise(promise_id, name),))

    async def starts_child(self, entity_id: str, child: str, *, place: int = 1, **fields: Any) -> None:
        """Have an execution begin a child."""
        claim = await self.take(entity_id)
        parent, seq = claim.instance, claim.instance.last_seq + len(claim.inbox) + 1
        call = events.Parent(
            entity_id=entity_id,
            run_id=parent.run_id,
            execution_id=parent.execution_id,
            location=Location((place,)),
            key=f"{parent.run_id}/{place}",
        )
        started = self.started(child, tree_id=parent.tree_id, parent=call, **fields)
        command = events.ChildScheduled(
            seq=seq,
            name="sell",
            queue=started.queue,
            entity_id=child,
            run_id=started.run_id,
            **at(place),
            deferred=started.deferred,
        )
        request = ChildRequest(
            started=started,
            created=events.ChildStarted(ref=seq, execution_id=started.execution_id),
            refused=events.ChildFailed(ref=seq, failure=FAILURE),
        )
        heard = [_numbered(e.event, parent.last_seq + n) for n, e in enumerate(claim.inbox, start=1)]
        await self.committed(claim, *heard, command, consumed=ids(claim.inbox), children=(request,))


def _numbered(entry: events.Event, seq: int) -> events.Event:
    return msgspec.structs.replace(entry, seq=seq)


@asynccontextmanager
async def workerless_engine(registry: Registry | None = None, **options: Any):
    """Open an engine that serves nothing on a store of its own, and hands to do what workers would."""
    clock = ManualClock()
    store = MemoryStore(clock, lease=LEASE)
    async with Engine(store, worker=False, clock=clock, registry=registry or Registry(), **options) as engine:
        yield engine, ManualWorker(store, clock, OpensStores())
