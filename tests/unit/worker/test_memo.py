"""Memoized results only save work: a store that cannot return or keep one fails no activity."""

import pytest
from msgspec import Raw

from resurgam.core.errors import StoreError, WriteRejected
from resurgam.core.outcome import Memo
from resurgam.store.memory.store import MemoryStore
from resurgam.testing.clock import ManualClock
from resurgam.worker.memo import Memos


class Broken:
    """Values out of reach."""

    def __init__(self, error: StoreError) -> None:
        self._error = error

    async def get(self, key: str) -> bytes | None:
        raise self._error

    async def put(self, key: str, value: bytes, *, expires_at: int | None = None) -> None:
        raise self._error

    async def put_if_absent(self, key: str, value: bytes, *, expires_at: int | None = None) -> bytes:
        raise self._error

    async def delete(self, key: str) -> None:
        raise self._error


@pytest.mark.parametrize("error", [StoreError("out of reach"), WriteRejected("too large")])
async def test_a_store_that_fails_is_logged_and_the_activity_runs(
    error: StoreError, caplog: pytest.LogCaptureFixture
) -> None:
    memos = Memos(Broken(error), ManualClock())
    assert await memos.find(Memo("k")) is None
    await memos.keep(Memo("k"), Raw(b"1"))
    assert [str(error) in record.message for record in caplog.records] == [True, True]


async def test_the_first_result_is_kept_for_its_time() -> None:
    clock = ManualClock()
    memos = Memos(MemoryStore(clock).values, clock)
    for memo in (Memo("short", 1000), Memo("long")):
        assert await memos.find(memo) is None
        await memos.keep(memo, Raw(b"1"))
        await memos.keep(memo, Raw(b"2"))
        assert await memos.find(memo) == Raw(b"1")
    clock.move_to(clock.now() + 1000)
    assert await memos.find(Memo("short", 1000)) is None
    assert await memos.find(Memo("long")) == Raw(b"1")
