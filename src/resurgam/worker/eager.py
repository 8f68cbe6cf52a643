"""The store as an engine's client sees it: what the client starts or wakes, the engine's own worker serves at once.

The start of a workflow, or a signal to one, and its claim are then one commit instead of two, and the worker need not
be woken to look for work.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from resurgam.core import event as events
from resurgam.store import records as r
from resurgam.store.protocol import Feed, Inspector, Queries, Store, Transfer, Values, Workers
from resurgam.worker.worker import Worker

P = TypeVar("P", r.Creation, r.Delivery)
A = TypeVar("A")


class EagerStore:
    """Offers the worker for what `create` and `deliver` make ready, and serves the claims that come back.

    Every other verb is passed on as it is.
    """

    def __init__(self, store: Store, worker: Worker) -> None:
        self._store = store
        self._worker = worker

    def create(self, parts: Sequence[r.Creation]) -> Awaitable[Sequence[r.Created | r.Exists]]:
        """Start executions."""
        return self._offer(self._store.create, parts)

    def deliver(
        self, parts: Sequence[r.Delivery]
    ) -> Awaitable[Sequence[r.Delivered | r.Missing | r.Ended | r.Settled]]:
        """Put events into inboxes."""
        return self._offer(self._store.deliver, parts)

    def _offer(
        self, verb: Callable[[Sequence[P]], Awaitable[Sequence[A]]], parts: Sequence[P]
    ) -> Awaitable[Sequence[A]]:
        offer = self._worker.reserve(len(parts))
        if offer is None:
            return verb(parts)
        try:
            answered = asyncio.ensure_future(verb([msgspec.structs.replace(part, offer=offer) for part in parts]))
        except BaseException:
            self._worker.unreserve(len(parts))
            raise
        if answered.done():
            self._serve(len(parts), answered)
        else:
            answered.add_done_callback(partial(self._serve, len(parts)))
            self._worker.track(answered)
        # A caller that is cancelled must not leave a claim unserved: the store answers all the same.
        return asyncio.shield(answered)

    def _serve(self, count: int, answered: "asyncio.Future[Sequence[A]]") -> None:
        """Serve what an answer has claimed, in the room that was reserved for it."""
        try:
            for answer in () if answered.cancelled() or answered.exception() is not None else answered.result():
                if isinstance(answer, r.Created | r.Delivered) and answer.claim is not None:
                    self._worker.serve(answer.claim)
        finally:
            self._worker.unreserve(count)

    # Passed on.

    @property
    def inspector(self) -> Inspector:
        """The store's own."""
        return self._store.inspector

    @property
    def queries(self) -> Queries:
        """The store's own."""
        return self._store.queries

    @property
    def transfer(self) -> Transfer:
        """The store's own."""
        return self._store.transfer

    @property
    def feed(self) -> Feed:
        """The store's own."""
        return self._store.feed

    @property
    def workers(self) -> Workers:
        """The store's own."""
        return self._store.workers

    @property
    def values(self) -> Values:
        """The store's own."""
        return self._store.values

    async def claim(self, worker: str, queues: Sequence[str], limit: int) -> Sequence[r.Claim]:
        """Claim instances."""
        return await self._store.claim(worker, queues, limit)

    async def commit(self, parts: Sequence[r.Commit]) -> Sequence[r.Committed | r.Refused]:
        """Commit outcomes."""
        return await self._store.commit(parts)

    def submit(self, part: r.Commit, done: Callable[[r.Committed | r.Refused | Exception], None]) -> None:
        """Commit one outcome."""
        self._store.submit(part, done)

    async def extend(self, leases: Sequence[r.Lease]) -> Sequence[r.Extended | r.Refused]:
        """Renew leases."""
        return await self._store.extend(leases)

    async def release(self, parts: Sequence[r.Release]) -> Sequence[r.Released | r.Refused]:
        """Release leases."""
        return await self._store.release(parts)

    async def claim_activities(self, worker: str, queues: Sequence[str], limit: int) -> Sequence[r.ActivityTask]:
        """Claim activities."""
        return await self._store.claim_activities(worker, queues, limit)

    async def complete_activities(self, parts: Sequence[r.ActivityResult]) -> Sequence[r.Accepted | r.Refused]:
        """Complete activities."""
        return await self._store.complete_activities(parts)

    async def read(self, execution: r.Addressed, after: int = 0) -> Sequence[events.Event]:
        """Return the log of an execution."""
        return await self._store.read(execution, after)

    def wait(self, watch: r.Watch, until: int | None = None) -> Coroutine[Any, Any, bool]:
        """Wait for a change."""
        return self._store.wait(watch, until)

    async def revive(self, executions: Sequence[r.Addressed]) -> Sequence[r.Revived | r.Missing]:
        """Offer dead letters again."""
        return await self._store.revive(executions)

    async def purge(self, executions: Sequence[r.Addressed]) -> Sequence[r.Purged | r.Missing | r.Unfinished]:
        """Remove ended executions."""
        return await self._store.purge(executions)

    async def close(self) -> None:
        """Close the store."""
        await self._store.close()
