"""A town for each test, with nobody left in it afterwards."""

import pytest

from acceptance.town import Town


@pytest.fixture
def town(tmp_path):
    town = Town(tmp_path)
    try:
        yield town
    finally:
        town.close()
