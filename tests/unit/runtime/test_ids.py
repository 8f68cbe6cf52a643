"""Ids that come out the same on replay, and that lead to their entity."""

from resurgam.core.identity import route_of
from resurgam.core.location import Location
from resurgam.runtime.ids import promise_id

PLACE = Location((1,))


def test_the_id_of_a_promise_begins_with_the_route_of_its_entity():
    assert promise_id(b"secret", "order-1", "run", PLACE).startswith(route_of("order-1"))


def test_the_id_of_a_promise_cannot_be_derived_without_the_secret():
    assert promise_id(b"secret", "order-1", "run", PLACE) != promise_id(b"other", "order-1", "run", PLACE)


def test_a_call_has_the_same_promise_on_replay_and_another_one_in_another_run_or_at_another_location():
    ids = [promise_id(b"s", "order-1", run, place) for run in ("a", "b") for place in (PLACE, Location((2,)))]
    assert len(set(ids)) == len(ids)
    assert ids[0] == promise_id(b"s", "order-1", "a", PLACE)
