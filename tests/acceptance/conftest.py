"""A cluster for each test, whose processes are killed afterwards."""

import pytest

from support.cluster import Cluster


@pytest.fixture
def cluster(tmp_path):
    cluster = Cluster(tmp_path)
    try:
        yield cluster
    finally:
        cluster.close()
