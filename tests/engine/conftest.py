"""Every test of the engine runs on each store, with cached coroutines and with none, unless it is marked otherwise."""

from itertools import product

import pytest

from support.engines import CACHES, Engines
from support.stores import STORES

_LATE_REPLAYED = ("late", "replayed")
"""Left out: with no cache, what arrives late is read as what arrived at once."""

COMBINATIONS = {"-".join(one): one for one in product(STORES, CACHES) if one != _LATE_REPLAYED}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the combinations: those of the marker ``engines``, else all."""
    if "engines" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("engines")
        names = marker.args if marker else tuple(COMBINATIONS)
        metafunc.parametrize("engines", [COMBINATIONS[name] for name in names], ids=names, indirect=True)


@pytest.fixture
def engines(request: pytest.FixtureRequest) -> Engines:
    """Open engines on one of the stores, with one size of cache."""
    store, cache = request.param
    return Engines(STORES[store], CACHES[cache])
