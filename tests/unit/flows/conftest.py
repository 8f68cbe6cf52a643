"""Every test that runs flows does so in several orders of results, and with a crash after every commit."""

from collections.abc import Iterator
from typing import Final

import pytest

from support.flow_runs import FlowRun

ORDERS: Final = range(5)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Permute the order of results, unless a test does so itself."""
    if hasattr(metafunc.module, "FlowRun") and "seed" not in metafunc.fixturenames:
        metafunc.fixturenames.append("order")
        metafunc.parametrize("order", ORDERS, indirect=True)


@pytest.fixture
def order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let results arrive in the order of a seed."""
    monkeypatch.setattr(FlowRun, "usual_seed", request.param)


@pytest.fixture(autouse=True)
def _crashes() -> Iterator[None]:
    FlowRun.made.clear()
    yield
    for run in FlowRun.made:
        run.check_crashes()
