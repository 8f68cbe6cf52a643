"""The store as an engine's client sees it: what the client starts or wakes, the engine's own worker serves at once.

The start of a workflow, or a signal to one, and its claim are then one commit instead of two, and the worker need not
be woken to look for work.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, Final, TypeVar

import msgspec

from resurgam.core import event as events
from resurgam.core.state import is_delayed
from resurgam.runtime.loop.outside_task import TICKS_OUTSIDE_TASKS, call_outside_task, run_outside_task
from resurgam.store import records as r
from resurgam.store.protocol import Feed, Inspector, Queries, Store, Transfer, Values, Workers
from resurgam.worker.held import HeldInstance
from resurgam.worker.worker import Worker

_STARTS: Final = 256
"""Starts that are advanced before they are stored, at a time: about as many as a store writes in one transaction."""

P = TypeVar("P", r.Creation, r.Delivery)
A = TypeVar("A")


class EagerStore:
    """Offers the worker for what `create` and `deliver` make ready, and serves the claims that come back.

    Every other verb is passed on as it is. *inspector* is the read side, if it is not that of the store itself.
    """

    def __init__(self, store: Store, worker: Worker, inspector: Inspector | None = None) -> None:
        self._store = store
        self._worker = worker
        self._inspector = store.inspector if inspector is None else inspector
        # Starts that were begun and are not stored yet, and those that wait until there are fewer.
        self._starting = 0
        self._waiting_starts: deque[asyncio.Future[None]] = deque()

    def create(self, parts: Sequence[r.Creation]) -> Awaitable[Sequence[r.Created | r.Exists]]:
        """Start executions, each with the commit of its first advance if the worker can make it."""
        offer = self._worker.offer()
        if offer is not None and _can_begin(parts, offer):
            if self._starting < _STARTS and not TICKS_OUTSIDE_TASKS:
                self._starting += 1
                begun: list[HeldInstance | None] = []
                return self._create(self._begin(parts, offer, begun), begun)
            return self._create_in_turn(parts)
        offer = self._worker.reserve(len(parts))
        if offer is None:
            return self._store.create(parts)
        offered = [msgspec.structs.replace(part, offer=offer) for part in parts]
        serve = partial(self._serve_created, [None] * len(parts))
        return self._call(self._store.create, offered, serve, partial(self._worker.unreserve, len(parts)))

    async def _create_in_turn(self, parts: Sequence[r.Creation]) -> Sequence[r.Created | r.Exists]:
        if self._starting >= _STARTS:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting_starts.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._end_start()  # the turn was given, and is passed on
                raise
        else:
            self._starting += 1
        offer = self._worker.offer()
        if offer is None:  # it has stopped meanwhile
            self._end_start()
            return await self._store.create(parts)
        begun: list[HeldInstance | None] = []
        try:
            offered = await run_outside_task(partial(self._begin, parts, offer, begun))
        except BaseException:
            # Cancelled, perhaps after they were begun.
            self._answered(partial(self._serve_created, begun), self._end_start, None)
            raise
        return await self._create(offered, begun)

    def _begin(
        self, parts: Sequence[r.Creation], offer: r.EagerOffer, begun: list[HeldInstance | None]
    ) -> list[r.Creation]:
        """Begin executions, and add them to *begun*; return what creates them, with their first commits."""
        offered = []
        for part in parts:
            one = self._worker.begin(part.started)
            begun.append(one)
            first = None if one is None else one.commit
            offered.append(msgspec.structs.replace(part, offer=offer, first=first))
        return offered

    def _create(
        self, offered: Sequence[r.Creation], begun: Sequence[HeldInstance | None]
    ) -> Awaitable[Sequence[r.Created | r.Exists]]:
        return self._call(self._store.create, offered, partial(self._serve_created, begun), self._end_start)

    def _end_start(self) -> None:
        """Give the turn of a start that is stored, or refused, to the next one."""
        while self._waiting_starts:
            turn = self._waiting_starts.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._starting -= 1

    def deliver(
        self, parts: Sequence[r.Delivery]
    ) -> Awaitable[Sequence[r.Delivered | r.Missing | r.Ended | r.Settled | r.Outdated]]:
        """Put events into inboxes."""
        offer = self._worker.reserve(len(parts))
        if offer is None:
            return self._store.deliver(parts)
        offered = [msgspec.structs.replace(part, offer=offer) for part in parts]
        finish = partial(self._worker.unreserve, len(parts))
        return self._call(self._store.deliver, offered, self._serve_delivered, finish)

    def _call(
        self,
        verb: Callable[[Sequence[P]], Awaitable[Sequence[A]]],
        parts: Sequence[P],
        serve: Callable[[Sequence[A]], None],
        finish: Callable[[], None],
    ) -> Awaitable[Sequence[A]]:
        """Call a verb, and serve what its answers have claimed; then free what was reserved for it by *finish*."""
        try:
            asked = verb(parts)
            answered = asked if isinstance(asked, asyncio.Future) else asyncio.ensure_future(asked)
        except BaseException:
            self._answered(serve, finish, None)
            raise
        if answered.done():
            self._answered(serve, finish, answered)
            return answered
        self._worker.track(answered)
        # A caller that is cancelled must not leave a claim unserved: it waits for a future of its own.
        waiter: asyncio.Future[Sequence[A]] = asyncio.get_running_loop().create_future()
        answered.add_done_callback(partial(self._pass_on, serve, finish, waiter))
        return waiter

    def _pass_on(
        self,
        serve: Callable[[Sequence[A]], None],
        finish: Callable[[], None],
        waiter: "asyncio.Future[Sequence[A]]",
        answered: "asyncio.Future[Sequence[A]]",
    ) -> None:
        self._worker.untrack(answered)
        try:
            self._answered(serve, finish, answered)
        finally:
            if waiter.done():
                pass  # its caller was cancelled
            elif answered.cancelled():
                waiter.cancel()
            elif (error := answered.exception()) is not None:
                waiter.set_exception(error)
            else:
                waiter.set_result(answered.result())

    def _answered(
        self,
        serve: Callable[[Sequence[A]], None],
        finish: Callable[[], None],
        answered: "asyncio.Future[Sequence[A]] | None",
    ) -> None:
        failed = answered is None or answered.cancelled() or answered.exception() is not None
        try:
            serve(() if failed or answered is None else answered.result())
        finally:
            finish()

    def _serve_delivered(self, answers: Sequence[r.Delivered | r.Missing | r.Ended | r.Settled | r.Outdated]) -> None:
        for answer in answers:
            if isinstance(answer, r.Delivered) and answer.claim is not None:
                self._worker.serve(answer.claim)

    def _serve_created(self, begun: Sequence[HeldInstance | None], answers: Sequence[r.Created | r.Exists]) -> None:
        for one, answer in zip_longest(begun, answers):
            claim, committed = (answer.claim, answer.committed) if isinstance(answer, r.Created) else (None, None)
            if one is not None and claim is not None and committed is not None:
                call_outside_task(self._worker.serve_begun, one, claim, committed)
                continue
            if one is not None:
                call_outside_task(self._worker.discard, one)
            if claim is not None:
                self._worker.serve(claim)

    # Passed on.

    @property
    def inspector(self) -> Inspector:
        """The store's own."""
        return self._inspector

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


def _can_begin(parts: Sequence[r.Creation], offer: r.EagerOffer) -> bool:
    """Whether a worker may make the first advance of starts: nothing else decides about their beginning."""
    for part in parts:
        started = part.started
        if started.queue not in offer.queues or part.inbox or part.follows is not None or is_delayed(started):
            return False
    return True
