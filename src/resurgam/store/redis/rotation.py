"""Claims from all partitions: each in its own order, the partitions in rotation."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from resurgam.store.redis.link import Link


class Rotation:
    """Claim work from the partitions of a store, beginning with another one each time."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._turn = 0

    async def claim(self, verb: str, limit: int, part: Callable[[int], list[Any]]) -> list[Any]:
        """Return what a verb claims, at most *limit* in all; *part* returns its part for the share of a partition.

        Its answer is how much is left, followed by what it has claimed. Each partition is asked for its share, at first with
        an equal one for all; what a partition leaves is offered to those that have more.
        """
        partitions = self._link.partitions
        asked = [(self._turn + number) % partitions for number in range(partitions)]
        self._turn = (self._turn + 1) % partitions
        claimed: list[Any] = []
        while asked and len(claimed) < limit:
            shares = _shares(limit - len(claimed), len(asked))
            answers = await asyncio.gather(
                *(self._link.ask(partition, verb, part(share)) for partition, share in zip(asked, shares, strict=True))
            )
            hungry = []
            for partition, share, (left, *found) in zip(asked, shares, answers, strict=True):
                claimed += found
                if left and len(found) == share:
                    hungry.append(partition)
            asked = hungry
        return claimed


def _shares(limit: int, count: int) -> Sequence[int]:
    """Return the shares of *count* partitions: the first ones have one more if it does not come out even."""
    each, more = divmod(limit, count)
    return [each + (number < more) for number in range(count)]
