"""The garbage collector of a process that only serves."""

import gc
from collections.abc import Iterator

import pytest

from resurgam.worker.garbage import collect_rarely


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def test_a_serving_process_collects_less_often_and_never_what_was_imported() -> None:
    usual = gc.get_threshold()
    collect_rarely()
    assert gc.get_threshold()[0] > usual[0]
    assert gc.get_freeze_count() > 0


def test_thresholds_that_a_module_has_set_are_kept() -> None:
    gc.set_threshold(123, 4, 5)
    collect_rarely()
    assert gc.get_threshold() == (123, 4, 5)
    assert gc.get_freeze_count() == 0
