"""What the tests of identities are written with: an engine in virtual time, on every store here, hot and cold."""

from contextlib import asynccontextmanager

import pytest

from resurgam import RetryPolicy
from resurgam.testing import Environment

TWICE = RetryPolicy(max_attempts=2, initial_interval=10, jitter=0)
ONCE = RetryPolicy(max_attempts=1)

STORES = {"memory": "memory://", "sqlite": "sqlite://"}
CACHES = {"cached": 1000, "replayed": 0}
EVERYWHERE = [
    pytest.param((url, cache), id=f"{store}-{how}") for store, url in STORES.items() for how, cache in CACHES.items()
]


class Life:
    """Opens worlds, one after another if need be."""

    def __init__(self, url, cache):
        self._url, self._cache = url, cache

    @asynccontextmanager
    async def world(self, registry, *, store=None, **options):
        async with Environment(store=store or self._url, registry=registry, cache_size=self._cache, **options) as env:
            yield env


async def executions(env, entity_id):
    """Return all executions of an entity, oldest first, with their histories."""
    return await env.engine.store.transfer.copies(entity_id)


async def run(env, workflow, *args, **options):
    """Start a workflow and return its result."""
    handle = await env.start(workflow, *args, **options)
    return await env.finish(handle.result())


def ids(info):
    """Return who an execution is."""
    return {name: getattr(info, name) for name in IDS}


IDS = ("entity_id", "execution_id", "run_id", "tree_id", "generation", "attempt")
