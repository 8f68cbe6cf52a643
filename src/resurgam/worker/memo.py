"""Keep results of activities for others that would compute the same."""

from msgspec import Raw

from resurgam.core.clock import Clock
from resurgam.core.errors import StoreError
from resurgam.core.outcome import Memo
from resurgam.store.protocol import Values
from resurgam.worker.tasks import log_failure


class Memos:
    """Results in the store, by key. They only save work: an activity whose result cannot be read or kept just runs."""

    def __init__(self, values: Values, clock: Clock) -> None:
        self._values = values
        self._clock = clock

    async def find(self, memo: Memo) -> Raw | None:
        """Return the result that is kept; None if there is none."""
        try:
            found = await self._values.get(memo.key)
        except StoreError as error:
            log_failure("the store failed to return a memoized result; the activity runs", error)
            return None
        return None if found is None else Raw(found)

    async def keep(self, memo: Memo, result: Raw) -> None:
        """Keep a result, unless another one is there."""
        expires_at = self._clock.now() + memo.ttl if memo.ttl else None
        try:
            await self._values.put_if_absent(memo.key, bytes(result), expires_at=expires_at)
        except StoreError as error:
            log_failure("the store failed to keep a memoized result", error)
