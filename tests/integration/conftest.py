"""Each store, hot and cold, for tests that ask for them."""

import pytest


@pytest.fixture(params=["memory://", "sqlite://"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[0, 1000], ids=["replayed", "cached"])
def cache(request: pytest.FixtureRequest) -> int:
    return int(request.param)
