"""Claims from all partitions: each in its own order, the partitions in rotation."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from resurgam.store.redis.link import Link
from resurgam.store.redis.outlook import Outlook


class Rotation:
    """Claim work from the partitions of a store, beginning with another one each time.

    A partition that cannot be asked just now, because its server fails over or its slot is moved, must not hold up the
    others. A claim waits for it no longer than a moment; what it brings later is kept for the next claim. *unwanted* is called
    with each lease that comes for a caller who was cancelled meanwhile.
    """

    def __init__(self, link: Link, kind: str, unwanted: Callable[[Any], None] = lambda _: None) -> None:
        self._link = link
        self._kind = kind
        self._unwanted = unwanted
        self._turn = 0

    async def claim(self, outlook: Outlook, limit: int, part: Callable[[int], list[Any]]) -> list[Any]:
        """Return what is claimed, at most *limit* in all; *part* returns the part for the share of a partition.

        An answer is how much is left, followed by what is claimed. Each partition that may have work is asked for its share,
        at first with an equal one for all; what a partition leaves is offered to those that have more. An error is raised if
        no partition answers otherwise: what others have leased must not be lost with it.
        """
        claimed = outlook.take_late(self._kind, limit)
        asked = self._in_turn(outlook.take(self._kind))
        failed: dict[int, Exception] = {}
        answered = bool(claimed)
        try:
            while asked and len(claimed) < limit:
                shares = _shares(limit - len(claimed), len(asked))
                answers = await self._ask(outlook, list(zip(asked, shares, strict=True)), part, claimed)
                hungry = []
                for partition, share, answer in zip(asked, shares, answers, strict=True):
                    if isinstance(answer, Exception):
                        failed[partition] = answer
                        continue
                    answered = True
                    if answer is None:  # it comes later
                        continue
                    left, *found = answer
                    claimed += found
                    if left and len(found) == share:
                        hungry.append(partition)
                asked = hungry
        finally:
            outlook.give_back(self._kind, [*asked, *failed])
        if failed and not answered:
            raise next(iter(failed.values()))
        return claimed

    async def _ask(
        self,
        outlook: Outlook,
        requests: Sequence[tuple[int, int]],
        part: Callable[[int], list[Any]],
        claimed: Sequence[Any],
    ) -> list[Any]:
        """Return the answers of some partitions to their shares, or the errors that came instead; None for late ones.

        If the caller is cancelled, the claims so far and those that still come are unwanted.
        """
        answers: list[Any] = [None] * len(requests)
        missing = len(requests)
        all_there: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def answered(place: int, answer: Any) -> None:
            nonlocal missing
            missing -= 1
            if all_there.cancelled():
                self._return([answer])
            elif all_there.done():
                outlook.keep_late(self._kind, requests[place][0], answer)
            else:
                answers[place] = answer
                if missing == 0:
                    all_there.set_result(None)

        def stop_waiting() -> None:
            if not all_there.done():
                late = zip(requests, answers, strict=True)
                outlook.expect_late(self._kind, [partition for (partition, _), answer in late if answer is None])
                all_there.set_result(None)

        for place, (partition, share) in enumerate(requests):
            self._link.call(partition, self._kind, part(share), partial(answered, place))
        call_off = outlook.call_if_late(stop_waiting)
        try:
            await all_there
        except asyncio.CancelledError:
            self._return([[0, *claimed], *answers])
            raise
        finally:
            call_off()
        return answers

    def return_late(self, outlook: Outlook) -> None:
        """Return what came late and was not claimed: the store is closed."""
        self._return([[0, *outlook.take_late(self._kind)]])

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
