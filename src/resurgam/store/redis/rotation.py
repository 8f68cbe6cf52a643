"""Claims from all partitions: each in its own order, the partitions in rotation."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from resurgam.store.redis.link import Link
from resurgam.store.redis.outlook import Outlook


class Rotation:
    """Claim work from the partitions of a store, beginning with another one each time."""

    def __init__(self, link: Link, kind: str) -> None:
        self._link = link
        self._kind = kind
        self._turn = 0

    async def claim(self, outlook: Outlook, limit: int, part: Callable[[int], list[Any]]) -> list[Any]:
        """Return what is claimed, at most *limit* in all; *part* returns the part for the share of a partition.

        An answer is how much is left, followed by what is claimed. Each partition that may have work is asked for its share,
        at first with an equal one for all; what a partition leaves is offered to those that have more.
        """
        asked = self._in_turn(outlook.take(self._kind))
        claimed: list[Any] = []
        try:
            while asked and len(claimed) < limit:
                shares = _shares(limit - len(claimed), len(asked))
                answers = await asyncio.gather(
                    *(
                        self._link.ask(partition, self._kind, part(share))
                        for partition, share in zip(asked, shares, strict=True)
                    )
                )
                hungry = []
                for partition, share, (left, *found) in zip(asked, shares, answers, strict=True):
                    claimed += found
                    if left and len(found) == share:
                        hungry.append(partition)
                asked = hungry
        finally:
            outlook.give_back(self._kind, asked)
        return claimed

    def _in_turn(self, partitions: set[int]) -> list[int]:
        turn, all_ = self._turn, self._link.partitions
        self._turn = (turn + 1) % all_
        return sorted(partitions, key=lambda partition: (partition - turn) % all_)


def _shares(limit: int, count: int) -> Sequence[int]:
    """Return the shares of *count* partitions: the first ones have one more if it does not come out even."""
    each, more = divmod(limit, count)
    return [each + (number < more) for number in range(count)]
