"""Waiters of one process: which changes wake them, and for which the store is asked first."""

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from resurgam.core.event import Event, WorkflowCompleted
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
    told: list[Event] = []
    telling = replace(CLOSED, tell=told.append)
    waiting = [asyncio.ensure_future(waiters.wait(watch, None)) for watch in (CLOSED, telling, INBOX)]
    await asyncio.sleep(0)
    asked.watches.clear()

    waiters.look(["x"], work=False)
    assert asked.watches == [CLOSED, telling, INBOX]
    assert told == []
    asked.watches.clear()

    entry = WorkflowCompleted(seq=2)
    waiters.look(["x"], closed={"x": entry, "unknown": None}, work=False)
    waiters.look(["x"], closed={"x": entry}, work=False)
    assert asked.watches == [INBOX, INBOX]
    assert told == [entry]
    assert await asyncio.gather(*waiting[:2]) == [True, True]
    assert not waiting[2].done()
    waiting[2].cancel()


async def test_an_end_whose_entry_is_not_known_is_told_without_it():
    waiters = Waiters(ManualClock(), Asked())
    told: list[Event] = []
    waiting = asyncio.ensure_future(waiters.wait(replace(CLOSED, tell=told.append), None))
    await asyncio.sleep(0)
    waiters.look(["x"], closed={"x": None}, work=False)
    assert await waiting is True
    assert told == []
