"""Every test of the engine runs on each store, with cached coroutines and with none, unless it is marked otherwise."""

from itertools import product
from typing import TYPE_CHECKING, Final
from zlib import crc32

import pytest

from support.engines import CACHES, Engines
from support.stores import STORES

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet

COMBINATIONS: Final = {"-".join(one): one for one in product(STORES, CACHES)}

_ACROSS_INSTANCES: Final = frozenset(
    {
        *(
            "test_child_flows",
            "test_children",
            "test_flow_deaths",
            "test_flow_orders",
            "test_parent_close",
            "test_promises",
        ),
        *("test_retried_parents", "test_signals"),
    }
)
"""Modules about effects on other instances, which stores with partitions apply late."""

_BY_THE_CODE_ALONE: Final = frozenset(
    {"test_handlers", "test_manual_compensation", "test_operations", "test_sagas", "test_versions"}
)
"""Modules about what a brain makes of one log: no store decides anything in them."""

_BESIDE_WORKERS: Final = frozenset({"test_archived_deletion", "test_archiving", "test_deletion", "test_retention"})
"""Modules about what is done to complete histories: the cache of a worker has no part in that."""

_CHOSEN: Final = {
    "memory-replayed": lambda module: module not in _BESIDE_WORKERS,
    "sqlite-replayed": lambda module: module not in _BESIDE_WORKERS,
    "late-replayed": _ACROSS_INSTANCES.__contains__,
    "redis-cached": lambda module: module not in _BY_THE_CODE_ALONE,
    "redis-cluster-replayed": _ACROSS_INSTANCES.__contains__,
    "redis-replayed": lambda _: False,
    "redis-cluster-cached": lambda _: False,
    "postgres-cached": lambda module: module not in _BY_THE_CODE_ALONE,
    "postgres-replayed": lambda _: False,
}
"""The modules that run on a combination in ``make test``, to save time; the others are run by ``make test-long``."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the combinations: those of the marker ``engines``, else all that fit the module."""
    if "engines" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("engines")
        module = metafunc.module.__name__.rpartition(".")[2]
        cases = [_case(name, module, chosen=marker is not None) for name in (marker.args if marker else COMBINATIONS)]
        metafunc.parametrize("engines", cases, indirect=True)


def _case(name: str, module: str, *, chosen: bool) -> "ParameterSet":
    always = chosen or name not in _CHOSEN or _CHOSEN[name](module)
    return pytest.param(COMBINATIONS[name], id=name, marks=() if always else pytest.mark.long)


@pytest.fixture
def engines(request: pytest.FixtureRequest) -> Engines:
    """Open engines on one of the stores, with one size of cache; the work of flows completes in an order of its own."""
    store, cache = request.param
    flows = "flow" in request.module.__name__ and "workflow" not in request.module.__name__
    return Engines(STORES[store], CACHES[cache], crc32(request.node.name.encode()) if flows else None)
