"""Claims from all partitions: each in its own order, the partitions in rotation."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from resurgam.store.redis.link import Link
from resurgam.store.redis.outlook import Outlook


class Rotation:
    """Claim work from the partitions of a store, beginning with another one each time.

    *unwanted* is called with each lease that comes for a caller who was cancelled meanwhile.
    """

    def __init__(self, link: Link, kind: str, unwanted: Callable[[Any], None] = lambda _: None) -> None:
        self._link = link
        self._kind = kind
        self._unwanted = unwanted
        self._turn = 0

    async def claim(self, outlook: Outlook, limit: int, part: Callable[[int], list[Any]]) -> list[Any]:
        """Return what is claimed, at most *limit* in all; *part* returns the part for the share of a partition.

        An answer is how much is left, followed by what is claimed. Each partition that may have work is asked for its share,
        at first with an equal one for all; what a partition leaves is offered to those that have more. The error of a
        partition is raised if the others have nothing: what they have leased must not be lost with it.
        """
        asked = self._in_turn(outlook.take(self._kind))
        claimed: list[Any] = []
        failed: dict[int, Exception] = {}
        try:
            while asked and len(claimed) < limit:
                shares = _shares(limit - len(claimed), len(asked))
                answers = await self._ask(list(zip(asked, shares, strict=True)), part, claimed)
                hungry = []
                for partition, share, answer in zip(asked, shares, answers, strict=True):
                    if isinstance(answer, Exception):
                        failed[partition] = answer
                        continue
                    left, *found = answer
                    claimed += found
                    if left and len(found) == share:
                        hungry.append(partition)
                asked = hungry
        finally:
            outlook.give_back(self._kind, [*asked, *failed])
        if failed and not claimed:
            raise next(iter(failed.values()))
        return claimed

    async def _ask(
        self, requests: Sequence[tuple[int, int]], part: Callable[[int], list[Any]], claimed: Sequence[Any]
    ) -> list[Any]:
        """Return the answers of some partitions to their shares, or the errors that came instead.

        If the caller is cancelled, the claims so far and those that still come are unwanted.
        """
        answers: list[Any] = [None] * len(requests)
        missing = len(requests)
        all_there: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def answered(place: int, answer: Any) -> None:
            nonlocal missing
            answers[place] = answer
            missing -= 1
            if all_there.cancelled():
                self._return([answer])
            elif missing == 0:
                all_there.set_result(None)

        for place, (partition, share) in enumerate(requests):
            self._link.call(partition, self._kind, part(share), partial(answered, place))
        try:
            await all_there
        except asyncio.CancelledError:
            self._return([[0, *claimed], *answers])
            raise
        return answers

    def _return(self, answers: Sequence[Any]) -> None:
        for answer in answers:
            if isinstance(answer, list):
                for one in answer[1:]:
                    self._unwanted(one)

    def _in_turn(self, partitions: set[int]) -> list[int]:
        turn, all_ = self._turn, self._link.partitions
        self._turn = (turn + 1) % all_
        return sorted(partitions, key=lambda partition: (partition - turn) % all_)


def _shares(limit: int, count: int) -> Sequence[int]:
    """Return the shares of *count* partitions: the first ones have one more if it does not come out even."""
    each, more = divmod(limit, count)
    return [each + (number < more) for number in range(count)]
