"""Remove ended runs of a certain age, in small batches beside other work."""

import logging
from datetime import timedelta
from typing import Final

import msgspec

from resurgam.core.clock import Clock
from resurgam.store.protocol import Store
from resurgam.store.records import EndedQuery
from resurgam.store.retention import Purge
from resurgam.worker.tasks import log_failure, sleep

logger = logging.getLogger("resurgam.worker")

BATCH: Final = 25
"""Executions removed in one transaction: a few milliseconds for which other work waits."""

DELAY: Final = 0.05
"""Seconds between two batches, so that most of the time is left to other work."""

_SHARE: Final = 10
_SHORTEST: Final = 1_000
_LONGEST: Final = 3_600_000
"""A pass starts after a tenth of the retained age, but at least a second and at most an hour after the last."""


class Retention(msgspec.Struct, frozen=True):
    """Removes executions that ended more than *age* milliseconds ago, unless another execution needs them."""

    store: Store
    clock: Clock
    age: int

    async def run(self) -> None:
        """Run passes until cancelled; if the store fails, the next pass tries again."""
        every = min(max(self.age // _SHARE, _SHORTEST), _LONGEST) / 1000
        while True:
            try:
                await self._pass()
            except Exception as error:  # noqa: BLE001 -- a worker that stops purging without a word would be worse
                log_failure(f"removing ended runs failed; trying again in {timedelta(seconds=every)}", error)
            await sleep(self.clock, every)

    async def _pass(self) -> None:
        removed = kept = 0
        query = EndedQuery(before=self.clock.now() - self.age, limit=BATCH)
        try:
            async for batch in Purge(self.store, query).batches():
                removed, kept = removed + batch.removed, kept + batch.kept
                await sleep(self.clock, DELAY)
        finally:
            if removed:
                age = timedelta(milliseconds=self.age)
                logger.info(
                    "removed %d ended executions older than %s; %d are kept for executions that need them",
                    removed,
                    age,
                    kept,
                )
