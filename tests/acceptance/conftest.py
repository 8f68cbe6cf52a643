"""A cluster for each test, whose processes are killed afterwards."""

import pytest

from support.cluster import Cluster, options_of
from support.limits import HANGS


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Wait for a locked database: on a busy machine, a worker that is stopped or slow may hold it for long."""
    for module in ("connection", "writer"):
        monkeypatch.setattr(f"resurgam.store.sqlite.{module}.BUSY_TIMEOUT", HANGS)


@pytest.fixture
def cluster(tmp_path, request):
    """Workers on a SQLite file, or on the store that a test names by the parameter ``cluster``, perhaps with a cache."""
    cluster = Cluster(tmp_path, **options_of(getattr(request, "param", "sqlite")))
    try:
        yield cluster
    finally:
        cluster.close()
