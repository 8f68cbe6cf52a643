"""Waiters of one process: which changes wake them, and for which the store is asked first."""

import asyncio
from collections.abc import Sequence

from resurgam.store.records import Closed, InboxChanged, Watch
from resurgam.store.watches import Waiters
from resurgam.testing import ManualClock

CLOSED = Closed(entity_id="e", execution_id="x")
INBOX = InboxChanged(entity_id="e", execution_id="x", wake=0)


class Asked:
    """Answers No, and notes what was asked for."""

    def __init__(self) -> None:
        self.watches: list[Watch] = []

    def __call__(self, watches: Sequence[Watch]) -> list[bool]:
        self.watches += watches
        return [False] * len(watches)


async def test_the_end_of_an_execution_is_told_without_a_check_and_everything_else_is_checked():
    asked = Asked()
    waiters = Waiters(ManualClock(), asked)
    waiting = [asyncio.ensure_future(waiters.wait(watch, None)) for watch in (CLOSED, CLOSED, INBOX)]
    await asyncio.sleep(0)
    asked.watches.clear()

    waiters.look(["x"], work=False)
    assert asked.watches == [CLOSED, CLOSED, INBOX]
    asked.watches.clear()

    waiters.look(["x"], closed=["x", "unknown"], work=False)
    assert asked.watches == [INBOX]
    assert await asyncio.gather(*waiting[:2]) == [True, True]
    assert not waiting[2].done()
    waiting[2].cancel()
