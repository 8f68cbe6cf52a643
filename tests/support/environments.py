"""Worlds in which findings of reviews are told: each store, hot and cold, in virtual time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from resurgam import Registry, RetryPolicy
from resurgam.testing import Environment

TWICE = RetryPolicy(max_attempts=2, initial_interval=10, jitter=0)
ONCE = RetryPolicy(max_attempts=1)


@asynccontextmanager
async def world(url: str, cache: int, registry: Registry, **options: Any) -> AsyncIterator[Environment]:
    async with Environment(store=url, registry=registry, cache_size=cache, patience=0.05, **options) as env:
        yield env
