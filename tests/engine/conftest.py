"""Every test of the engine runs on each store, with cached coroutines and with none."""

from itertools import product

import pytest

from support.engines import CACHES, Engines
from support.stores import STORES

_LATE_REPLAYED = ("late", "replayed")
"""Left out: with no cache, what arrives late is read as what arrived at once."""


@pytest.fixture(params=[one for one in product(STORES, CACHES) if one != _LATE_REPLAYED], ids="-".join)
def engines(request: pytest.FixtureRequest) -> Engines:
    """Open engines on one of the stores, with one size of cache."""
    store, cache = request.param
    return Engines(STORES[store], CACHES[cache])
