"""Every test of the engine runs on each store, with cached coroutines and with none."""

import pytest

from support.engines import CACHES, Engines
from support.stores import STORES


@pytest.fixture(params=[(store, cache) for store in STORES for cache in CACHES], ids="-".join)
def engines(request: pytest.FixtureRequest) -> Engines:
    """Open engines on one of the stores, with one size of cache."""
    store, cache = request.param
    return Engines(STORES[store], CACHES[cache])
