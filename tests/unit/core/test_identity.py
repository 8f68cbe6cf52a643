"""Ids derived from the location of a durable call."""

from resurgam.core.identity import entity_of, execution_of, route_of
from resurgam.core.location import Location


def test_an_entity_id_consists_of_run_and_location():
    assert entity_of("01RUN", Location.parse("{2, 1.1, 3}")) == "01RUN/2/1.1/3"


def test_the_same_location_of_another_run_is_another_entity():
    place = Location.parse("{1}")

    assert entity_of("a", place) != entity_of("b", place)


def test_a_step_repeated_after_its_compensation_is_another_entity():
    assert entity_of("01RUN", Location.parse("{2, 1}"), undone=2) == "01RUN/2/1~2"


def test_an_execution_is_one_attempt_at_an_entity():
    assert [execution_of("01RUN/2", attempt) for attempt in (1, 2)] == ["01RUN/2#1", "01RUN/2#2"]


def test_a_route_is_four_hex_digits_that_never_change():
    """Written out, because ids that clients hold begin with it."""
    assert [route_of(entity) for entity in ("order-1", "order-2", "")] == ["bc83", "9d9e", "b1fe"]


def test_routes_spread_entities_over_partitions():
    partitions = [int(route_of(f"order-{number}"), 16) % 4 for number in range(400)]

    assert all(80 <= partitions.count(partition) <= 120 for partition in range(4))
