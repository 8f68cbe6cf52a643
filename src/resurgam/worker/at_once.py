"""The store as the client of an engine sees it: what it begins or wakes, the engine's own worker takes at once.

The start of a workflow, or a signal to one, and the claim of it are then one commit instead of two, and nobody has to
be woken to look for work.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from resurgam.store import records as r
from resurgam.store.protocol import Store
from resurgam.worker.loop import Worker


class AtOnce:
    """Adds the worker's name to what it could take, and hands it the claims that come back."""

    def __init__(self, store: Store, worker: Worker) -> None:
        self._store = store
        self._worker = worker

    async def create(self, parts: Sequence[r.Creation]) -> Sequence[r.Created | r.Exists]:
        """Begin executions."""
        with self._worker.reserve(len(parts)) as offer:
            answers = await self._store.create([_offered(part, offer) for part in parts])
            self._begin(answers)
        return answers

    async def deliver(self, parts: Sequence[r.Delivery]) -> Sequence[r.Delivered | r.Missing | r.Ended]:
        """Put events into inboxes."""
        with self._worker.reserve(len(parts)) as offer:
            answers = await self._store.deliver([_offered(part, offer) for part in parts])
            self._begin(answers)
        return answers

    def _begin(self, answers: Sequence[Any]) -> None:
        for answer in answers:
            if isinstance(answer, r.Created | r.Delivered) and answer.claim is not None:
                self._worker.begin(answer.claim)

    def __getattr__(self, verb: str) -> Any:
        """Every other verb is the store's own."""
        return getattr(self._store, verb)


def _offered(part: Any, offer: r.Offer | None) -> Any:
    return part if offer is None else msgspec.structs.replace(part, offer=offer)
