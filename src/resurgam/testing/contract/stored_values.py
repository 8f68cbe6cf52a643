"""Small values by key: stored, replaced, expired, and put once by many."""

import asyncio

from resurgam.store.secret import secret_of
from resurgam.testing.contract.bench import HOUR, OpensStores


class ValueCases(OpensStores):
    """`Values`."""

    async def test_a_value_is_returned_until_it_is_replaced_or_deleted(self) -> None:
        """Any bytes are a value, also none."""
        async with self.bench() as b:
            values = b.store.values
            assert await values.get("k") is None
            await values.put("k", b"\x00\xff")
            await values.put("other", b"")
            assert await values.get("k") == b"\x00\xff"
            assert await values.get("other") == b""
            await values.put("k", b"two")
            assert await values.get("k") == b"two"
            await values.delete("k")
            await values.delete("k")
            assert await values.get("k") is None
            assert await values.get("other") == b""

    async def test_a_value_expires_at_its_moment(self) -> None:
        """It is there a millisecond before, and one without a moment stays."""
        async with self.bench() as b:
            await b.store.values.put("k", b"v", expires_at=b.clock.now() + HOUR)
            await b.store.values.put("stays", b"v")
            await b.pass_time(HOUR - 1)
            assert await b.store.values.get("k") == b"v"
            await b.pass_time(1)
            assert await b.store.values.get("k") is None
            assert await b.store.values.get("stays") == b"v"

    async def test_a_value_that_is_put_again_has_the_new_moment(self) -> None:
        """A later one, or none."""
        async with self.bench() as b:
            await b.store.values.put("later", b"v", expires_at=b.clock.now() + 1)
            await b.store.values.put("later", b"v", expires_at=b.clock.now() + HOUR)
            await b.store.values.put("stays", b"v", expires_at=b.clock.now() + 1)
            await b.store.values.put("stays", b"v")
            await b.pass_time(HOUR - 1)
            assert await b.store.values.get("later") == b"v"
            await b.pass_time(HOUR)
            assert await b.store.values.get("later") is None
            assert await b.store.values.get("stays") == b"v"

    async def test_a_value_that_is_there_is_kept_by_a_put_if_absent(self) -> None:
        """With its moment; once it has expired, the next one is stored."""
        async with self.bench() as b:
            values = b.store.values
            assert await values.put_if_absent("k", b"one", expires_at=b.clock.now() + HOUR) == b"one"
            assert await values.put_if_absent("k", b"two") == b"one"
            await b.pass_time(HOUR)
            assert await values.put_if_absent("k", b"three") == b"three"
            assert await values.get("k") == b"three"

    async def test_of_many_that_put_if_absent_one_value_is_stored(self) -> None:
        """All of them return it."""
        async with self.bench() as b:
            values = b.store.values
            found = await asyncio.gather(*(values.put_if_absent("k", bytes([number])) for number in range(10)))
            assert set(found) == {await values.get("k")}

    async def test_a_store_has_one_secret_of_its_own(self) -> None:
        """It is long enough, always the same, and no other store's."""
        async with self.bench() as a, self.bench() as b:
            secret = await secret_of(a.store.values)
            assert len(secret) == 32
            assert await secret_of(a.store.values) == secret
            assert await secret_of(b.store.values) != secret
