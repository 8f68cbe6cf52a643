"""Reads go over several connections at once, and return in the order of their calls."""

import asyncio

import pytest

from resurgam.errors import StoreError
from resurgam.runtime.system import SystemClock
from resurgam.store.postgres.pool import Pool
from resurgam.store.postgres.url import parse


class Reads:
    """Reads of a pool whose server answers when it is told to."""

    def __init__(self, monkeypatch):
        self._pool = Pool(parse("postgresql://nowhere/"), SystemClock(), name="test", lease=1)
        self._answers = {}
        self.returned = []
        self.tasks = {}
        monkeypatch.setattr(self._pool, "_perform", self._perform)

    @property
    def turns(self):
        return self._pool._turns

    async def _perform(self, flight):
        [number] = flight.arguments(None)
        return await self._answers[number]

    async def begin(self, *numbers, function="look"):
        for number in numbers:
            self._answers[number] = asyncio.get_running_loop().create_future()
            self.tasks[number] = asyncio.ensure_future(self._read(function, number))
        await settled()

    async def _read(self, function, number):
        try:
            await self._pool.fetch(function, number)
        finally:
            self.returned.append(number)

    async def answer(self, *numbers, error=None):
        for number in numbers:
            if error is None:
                self._answers[number].set_result([])
            else:
                self._answers[number].set_exception(error)
            await settled()


async def settled():
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
def reads(monkeypatch):
    return Reads(monkeypatch)


async def test_reads_return_in_the_order_of_their_calls(reads):
    await reads.begin(1, 2, 3)
    await reads.answer(3, 2)
    assert reads.returned == []
    await reads.answer(1)
    assert reads.returned == [1, 2, 3]
    assert reads.turns == {}


async def test_reads_of_different_functions_do_not_wait_for_each_other(reads):
    await reads.begin(1)
    await reads.begin(2, function="list")
    await reads.answer(2)
    assert reads.returned == [2]
    await reads.answer(1)


async def test_a_read_behind_a_cancelled_one_does_not_overtake_those_before_it(reads):
    await reads.begin(1, 2, 3)
    await reads.answer(3)
    reads.tasks[2].cancel()
    await settled()
    assert reads.returned == [2]
    await reads.answer(1)
    assert reads.returned == [2, 1, 3]
    await reads.answer(2)
    assert reads.turns == {}


async def test_a_read_behind_a_failed_one_does_not_overtake_those_before_it(reads):
    await reads.begin(1, 2, 3)
    await reads.answer(2, error=StoreError("no"))
    await reads.answer(3)
    assert reads.returned == [2]
    await reads.answer(1)
    assert reads.returned == [2, 1, 3]
    with pytest.raises(StoreError):
        await reads.tasks[2]
    assert reads.turns == {}


async def test_a_read_whose_last_predecessor_is_cancelled_returns(reads):
    await reads.begin(1, 2)
    await reads.answer(2)
    reads.tasks[1].cancel()
    await settled()
    assert reads.returned == [1, 2]
    await reads.answer(1)
    assert reads.turns == {}
