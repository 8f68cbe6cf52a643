"""What the end-to-end cases are written with: an engine in virtual time on the store under test."""

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, ClassVar

from resurgam.client.handle import Handle
from resurgam.core import event as events
from resurgam.engine import Engine
from resurgam.runtime.registry import Registry
from resurgam.store.protocol import Store
from resurgam.testing.clock import ManualClock
from resurgam.testing.contract.bench import OpensStores
from resurgam.testing.environment import Environment


class OpensEngines(OpensStores):
    """Every case takes *cache*, the number of coroutines that are kept alive, and is run with many and with none.

    *patience* is how many real seconds without any progress mean that an activity waits for the case to go on.
    """

    caches: ClassVar[dict[str, int]] = {"cached": 1000, "replayed": 0}
    patience: float = 0.05

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Run each case with every size of the cache; pytest calls this."""
        if "cache" in metafunc.fixturenames:
            metafunc.parametrize("cache", list(self.caches.values()), ids=list(self.caches))

    @asynccontextmanager
    async def world(self, cache: int, registry: Registry, **options: Any) -> AsyncIterator[Environment]:
        """Open a store and an engine on it."""
        clock = ManualClock()
        async with self.open_store(clock) as store, self.serve(store, clock, cache, registry, **options) as env:
            yield env

    @asynccontextmanager
    async def serve(
        self, store: Store, clock: ManualClock, cache: int, registry: Registry, **options: Any
    ) -> AsyncIterator[Environment]:
        """Open an engine on a store that is open already."""
        given = {"patience": self.patience, "grace": 1, **options}
        async with Environment(store=store, registry=registry, clock=clock, cache_size=cache, **given) as env:
            yield env

    @asynccontextmanager
    async def client(self, registry: Registry) -> AsyncIterator[tuple[Store, ManualClock, Engine]]:
        """Open a store, and an engine that starts workflows without serving any queue."""
        clock = ManualClock()
        async with AsyncExitStack() as stack:
            store = await stack.enter_async_context(self.open_store(clock))
            engine = Engine(store, registry=registry, clock=clock, worker=False)
            yield store, clock, await stack.enter_async_context(engine)

    async def run(self, env: Environment, workflow: Any, *args: Any) -> Any:
        """Start a workflow and return its result."""
        handle = await env.start(workflow, *args)
        return await env.finish(handle.result())


def types(history: Iterable[events.Event]) -> list[str]:
    """Return the kinds of the entries of a history."""
    return [entry.type for entry in history]


async def types_of(handle: Handle[Any]) -> list[str]:
    """Return the kinds of the entries of a workflow's history."""
    return types(await handle.history())
