"""Engines in virtual time on each store, with and without cached coroutines, and what is asked of them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, TypeVar

from resurgam.client.handle import Handle
from resurgam.core import event as events
from resurgam.core.codec import codec_for
from resurgam.core.retry import RetryPolicy
from resurgam.engine import Engine
from resurgam.runtime.registry import Registry
from resurgam.runtime.system import new_id
from resurgam.store import records as r
from resurgam.store.protocol import Store
from resurgam.testing.clock import ManualClock
from resurgam.testing.environment import Environment
from support.stores import OpenStore, answered
from support.submitting import submit_by_commit

E = TypeVar("E", bound=events.Event)


ONCE = RetryPolicy(max_attempts=1)
TWICE = RetryPolicy(max_attempts=2, initial_interval=10, jitter=0)

CACHES = {"cached": 1000, "replayed": 0}
"""How many coroutines an engine keeps alive: with none, every step replays the history."""


class StoreEnvironment(Environment):
    """An engine in virtual time on a store that may be reached over a network."""

    async def settle(self) -> None:
        """Wait until the engine has done everything that is possible, and its store has answered everything."""
        await super().settle()
        while await answered(self.engine.store):
            await super().settle()


class Engines:
    """Open engines on one kind of store, all with the same size of cache.

    *patience* is how many real seconds without any progress mean that an activity waits for the test to go on. With *seed*
    the order in which activities run is drawn.
    """

    patience: float = 0.05

    def __init__(self, open_store: OpenStore, cache: int, seed: int | None = None) -> None:
        self.open_store = open_store
        self.cache = cache
        self.seed = seed

    @asynccontextmanager
    async def open(
        self, registry: Registry, *, clock: ManualClock | None = None, **options: Any
    ) -> AsyncIterator[Environment]:
        """Open a store and an engine on it."""
        clock = clock or ManualClock()
        async with self.open_store(clock) as store, self.serve(store, clock, registry, **options) as env:
            yield env

    @asynccontextmanager
    async def serve(
        self, store: Store, clock: ManualClock, registry: Registry, **options: Any
    ) -> AsyncIterator[Environment]:
        """Open an engine on a store that is open already."""
        given = {"patience": self.patience, "grace": 1, "seed": self.seed, **options}
        async with StoreEnvironment(store=store, registry=registry, clock=clock, cache_size=self.cache, **given) as env:
            yield env

    @asynccontextmanager
    async def client(self, registry: Registry) -> AsyncIterator[tuple[Store, ManualClock, Engine]]:
        """Open a store, and an engine that starts workflows without serving any queue."""
        clock = ManualClock()
        async with AsyncExitStack() as stack:
            store = await stack.enter_async_context(self.open_store(clock))
            engine = Engine(store, registry=registry, clock=clock, worker=False)
            yield store, clock, await stack.enter_async_context(engine)


async def run(env: Environment, workflow: Any, *args: Any, **options: Any) -> Any:
    """Start a workflow and return its result."""
    handle = await env.start(workflow, *args, **options)
    return await env.finish(handle.result())


async def executions(env: Environment, entity_id: str) -> Sequence[r.Copy]:
    """Return all executions of an entity, oldest first, with their histories."""
    return await env.engine.store.transfer.copies(entity_id)


def ids(info: Any) -> dict[str, Any]:
    """Return the ids, the generation and the attempt of an execution."""
    names = ("entity_id", "execution_id", "run_id", "tree_id", "generation", "attempt")
    return {name: getattr(info, name) for name in names}


def types(history: Iterable[events.Event]) -> list[str]:
    """Return the kinds of the entries of a history."""
    return [entry.type for entry in history]


async def types_of(handle: Handle[Any]) -> list[str]:
    """Return the kinds of the entries of a workflow's history."""
    return types(await handle.history())


async def settle(*envs: Environment) -> None:
    """Wait until several engines on one store have done all they can do: each may have given the others work."""
    for _ in range(3):
        for env in envs:
            await env.settle()


async def count_of(env: Environment, **query: Any) -> int:
    """Return how many executions there are."""
    return len((await env.engine.list(limit=1000, **query)).instances)


async def slip_in(env: Environment, handle: Handle[Any], name: str, value: object) -> None:
    """Send a signal without the check of its type, as a client does that cannot know the schema."""
    now = env.clock.now()
    written = codec_for(Any).encode(value, name)
    event = events.SignalReceived(at=now, name=name, id=new_id(now), value=written)
    await env.engine.store.deliver([r.Delivery(event=event, entity_id=handle.entity_id)])


class Interposed:
    """A store before whose commits something may happen: *before* is told what is about to be committed."""

    def __init__(self, store: Store, before: Callable[[r.Commit], Awaitable[object]]) -> None:
        self._store = store
        self._before = before

    async def commit(self, parts: Sequence[r.Commit]) -> Sequence[r.Committed | r.Refused]:
        """Commit, after what happens before."""
        for part in parts:
            await self._before(part)
        return await self._store.commit(parts)

    def submit(self, part: r.Commit, done: Callable[[Any], None]) -> None:
        """Commit by `commit`."""
        submit_by_commit(self.commit, part, done)

    def __getattr__(self, verb: str) -> Any:
        """Every other verb is the store's own."""
        return getattr(self._store, verb)


class SlowToHear:
    """A store whose watchers learn of a change only once *told* is set: a client far away, or a busy one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.told = asyncio.Event()

    async def wait(self, watch: r.Watch, until: int | None = None) -> bool:
        """Wait for what is watched, after the client may hear of it."""
        await self.told.wait()
        return await self._store.wait(watch, until)

    def __getattr__(self, verb: str) -> Any:
        """Pass every other verb on to the store."""
        return getattr(self._store, verb)


def writes(part: r.Commit, *kinds: type[events.Event]) -> bool:
    """Whether a commit records an entry of one of these kinds."""
    return any(isinstance(entry, kinds) for entry in part.outcome.events)


@contextmanager
def complaints(logger: str) -> Iterator[list[str]]:
    """Collect what is logged below a logger as a warning or worse."""
    said: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    collect = Collect(logging.WARNING)
    logging.getLogger(logger).addHandler(collect)
    try:
        yield said
    finally:
        logging.getLogger(logger).removeHandler(collect)


def of_kind(history: Iterable[events.Event], kind: type[E]) -> list[E]:
    """Return the entries of one kind."""
    return [entry for entry in history if isinstance(entry, kind)]
