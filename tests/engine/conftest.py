"""Every test of the engine runs on each store, with cached coroutines and with none, unless it is marked otherwise."""

from itertools import product
from typing import Final

import pytest

from support.engines import CACHES, Engines
from support.stores import STORES

COMBINATIONS: Final = {"-".join(one): one for one in product(STORES, CACHES)}

_LATE_REPLAYED: Final = "late-replayed"
_ACROSS_INSTANCES: Final = frozenset(
    {"test_children", "test_parent_close", "test_promises", "test_retried_parents", "test_signals"}
)
"""Modules about effects on other instances: only they run on `_LATE_REPLAYED`, to save time."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the combinations: those of the marker ``engines``, else all that fit the module."""
    if "engines" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("engines")
        names = marker.args if marker else _combinations_of(metafunc.module.__name__.rpartition(".")[2])
        metafunc.parametrize("engines", [COMBINATIONS[name] for name in names], ids=names, indirect=True)


def _combinations_of(module: str) -> tuple[str, ...]:
    return tuple(name for name in COMBINATIONS if name != _LATE_REPLAYED or module in _ACROSS_INSTANCES)


@pytest.fixture
def engines(request: pytest.FixtureRequest) -> Engines:
    """Open engines on one of the stores, with one size of cache."""
    store, cache = request.param
    return Engines(STORES[store], CACHES[cache])
