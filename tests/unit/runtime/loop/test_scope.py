"""Hashes of futures and tasks."""

from resurgam.runtime.loop.scope import stable_hash


def test_a_hash_stays_what_it_was_when_a_history_was_recorded():
    assert stable_hash("run-1", "{1}") == 3011235520298713039
    assert stable_hash("run-1", "root") == -7991558224127998734
