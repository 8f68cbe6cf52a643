"""The stores that are compared with the memory store, each opened once by every worker of a story."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from resurgam.store.memory.store import MemoryStore
from resurgam.store.postgres.store import PostgresStore
from resurgam.store.redis.store import RedisStore
from resurgam.store.sqlite.store import SqliteStore
from resurgam.testing import ManualClock
from resurgam.testing.contract import LEASE
from support import postgres
from support.agreement.chance import Chance
from support.agreement.coverage import Coverage
from support.agreement.sides import Normal, Side
from support.agreement.story import WORKERS, Story
from support.late_effects import PartitionedStore
from support.redis import ears_of, effects_arrived, fresh_cluster_url, fresh_url


@dataclass(frozen=True)
class Subject:
    """A kind of store: whether it has partitions, and how each worker opens it, for an empty one."""

    partitioned: bool
    open: Callable[[ManualClock], AbstractAsyncContextManager[Side]]


async def nothing() -> None:
    """Settle a store whose effects are applied with the commit."""


@asynccontextmanager
async def open_sqlite(clock: ManualClock) -> AsyncIterator[Side]:
    """Open one file for each worker."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "agreement.db"
        async with AsyncExitStack() as stack:
            stores = {}
            for worker in WORKERS:
                stores[worker] = SqliteStore(path, clock, name=worker, lease=LEASE, synchronous="OFF")
                stack.push_async_callback(stores[worker].close)
            yield Side(stores, nothing)


def open_redis(make_url: Callable[[], str]) -> Callable[[ManualClock], AbstractAsyncContextManager[Side]]:
    """Return how each worker opens one empty store at such a URL."""

    @asynccontextmanager
    async def open_stores(clock: ManualClock) -> AsyncIterator[Side]:
        url = make_url()
        async with AsyncExitStack() as stack:
            stores = {}
            for worker in WORKERS:
                stores[worker] = RedisStore(url, clock, name=worker, lease=LEASE)
                stack.push_async_callback(stores[worker].close)

            async def settle() -> None:
                for store in stores.values():
                    await effects_arrived(store)
                for store in stores.values():
                    await ears_of(store).heard_all()

            yield Side(stores, settle)

    return open_stores


@asynccontextmanager
async def open_postgres(clock: ManualClock) -> AsyncIterator[Side]:
    """Open one schema for each worker."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(postgres.emptied_url())
        stores = {}
        for worker in WORKERS:
            stores[worker] = PostgresStore(url, clock, name=worker, lease=LEASE)
            stack.push_async_callback(stores[worker].close)
        yield Side(stores, await stack.enter_async_context(postgres.transactions_ended()))


def oracle(clock: ManualClock, *, partitioned: bool) -> Side:
    """Return the memory store, which all workers share; with partitions, effects on others of them come later."""
    if not partitioned:
        return Side(dict.fromkeys(WORKERS, MemoryStore(clock, lease=LEASE)), nothing)
    store = PartitionedStore(clock, lease=LEASE)
    return Side(dict.fromkeys(WORKERS, store), store.settle)


SUBJECTS: dict[str, Subject] = {
    "sqlite": Subject(partitioned=False, open=open_sqlite),
    "postgres": Subject(partitioned=False, open=open_postgres),
    "redis": Subject(partitioned=True, open=open_redis(fresh_url)),
    "redis-cluster": Subject(partitioned=True, open=open_redis(fresh_cluster_url)),
}


MOVES: Final = 5
"""The last digit of stories in which executions are removed and adopted again, as by moves, or archived and restored."""


async def tell(subject: Subject, seed: int, steps: int, coverage: Coverage) -> None:
    """Tell one story; an assertion says in which step of it the stores came to differ."""
    clock = ManualClock()
    async with subject.open(clock) as side:
        sides = (oracle(clock, partitioned=subject.partitioned), side)
        story = Story(
            sides, Chance(seed, clock), Normal(ordered=not subject.partitioned), coverage, moves=seed % 10 == MOVES
        )
        await story.begin()
        for number in range(steps):
            try:
                await story.step()
            except AssertionError as error:
                error.add_note(f"in step {number} of story {seed}")
                raise
