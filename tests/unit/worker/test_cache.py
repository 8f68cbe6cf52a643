"""Instances that are kept in memory: two claims never get the same one."""

from types import SimpleNamespace

import pytest

from resurgam.worker.cache import InstanceCache


class Live:
    """A coroutine that stands at some entry of its log."""

    def __init__(self, last_seq):
        self.last_seq = last_seq
        self.closed = False

    def close(self):
        self.closed = True


def at(last_seq):
    return SimpleNamespace(execution_id="e", last_seq=last_seq)


@pytest.fixture
def cache():
    return InstanceCache(SimpleNamespace(run=lambda _, call: call()), size=2)


def test_an_instance_is_given_out_once(cache):
    """A second claim, after a lease that was lost, replays beside the first."""
    cache.put("e", live := Live(3))
    assert cache.take(at(3)) is live
    assert cache.take(at(3)) is None
    assert not live.closed


@pytest.mark.parametrize("last_seq", [2, 4])
def test_an_instance_that_is_not_where_the_log_ends_is_closed(cache, last_seq):
    cache.put("e", live := Live(3))
    assert cache.take(at(last_seq)) is None
    assert live.closed
