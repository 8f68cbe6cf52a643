"""The store as the client of an engine sees it: what it begins or wakes, the engine's own worker takes at once.

The start of a workflow, or a signal to one, and the claim of it are then one commit instead of two, and nobody has to
be woken to look for work.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from resurgam.store import records as r
from resurgam.store.protocol import Store
from resurgam.worker.worker import Worker

P = TypeVar("P", r.Creation, r.Delivery)
A = TypeVar("A")


class EagerStore:
    """Adds the worker's name to what it could take, and hands it the claims that come back."""

    def __init__(self, store: Store, worker: Worker) -> None:
        self._store = store
        self._worker = worker

    async def create(self, parts: Sequence[r.Creation]) -> Sequence[r.Created | r.Exists]:
        """Begin executions."""
        return await self._offering(self._store.create, parts)

    async def deliver(self, parts: Sequence[r.Delivery]) -> Sequence[r.Delivered | r.Missing | r.Ended | r.Settled]:
        """Put events into inboxes."""
        return await self._offering(self._store.deliver, parts)

    async def _offering(self, verb: Callable[[Sequence[P]], Awaitable[Sequence[A]]], parts: Sequence[P]) -> Sequence[A]:
        offer = self._worker.reserve(len(parts))
        if offer is None:
            return await verb(parts)
        # In a task of the worker's own: a caller that is cancelled must not leave a claim that nobody serves.
        return await asyncio.shield(self._worker.sheltered(self._answer(verb, parts, offer)))

    async def _answer(
        self, verb: Callable[[Sequence[P]], Awaitable[Sequence[A]]], parts: Sequence[P], offer: r.EagerOffer
    ) -> Sequence[A]:
        try:
            answers = await verb([msgspec.structs.replace(part, offer=offer) for part in parts])
            for answer in answers:
                if isinstance(answer, r.Created | r.Delivered) and answer.claim is not None:
                    self._worker.begin(answer.claim)
        finally:
            self._worker.unreserve(len(parts))
        return answers

    def __getattr__(self, verb: str) -> Any:
        """Every other verb is the store's own."""
        return getattr(self._store, verb)
