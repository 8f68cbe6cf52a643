"""A cluster for each test, with nobody left in it afterwards."""

import pytest

from support.cluster import Cluster


@pytest.fixture
def cluster(tmp_path):
    cluster = Cluster(tmp_path)
    try:
        yield cluster
    finally:
        cluster.close()
