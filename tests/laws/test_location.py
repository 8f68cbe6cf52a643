"""What holds for all places: there is always room, nothing collides, and bytes sort as tuples do."""

import random

from hypothesis import given
from hypothesis import strategies as st

from resurgam.core.location import BEFORE_FIRST, ROOT, Coordinate, Location, after, between

ordinates = st.integers(0, 3) | st.integers(0, 2**40)
coordinates = st.builds(
    lambda head, end: (*head, end),
    st.lists(ordinates, max_size=4).map(tuple),
    st.integers(1, 3) | st.integers(1, 2**40),
)
small_coordinates = st.builds(
    lambda head, end: (*head, end), st.lists(st.integers(0, 2), max_size=4).map(tuple), st.integers(1, 2)
)
locations = st.lists(small_coordinates | coordinates, max_size=4).map(lambda parts: Location(*parts))


@given(small_coordinates | coordinates | st.just(BEFORE_FIRST), small_coordinates | coordinates)
def test_between_is_strictly_between_and_never_ends_in_zero(one, other):
    left, right = sorted((one, other))
    if right not in (left, BEFORE_FIRST):
        new = between(left, right)
        assert left < new < right
        assert new[-1] != 0
        Location(new)


@given(small_coordinates | coordinates)
def test_after_comes_after_and_is_a_single_ordinate(last):
    new = after(last)
    assert last < new
    assert len(new) == 1
    Location(new)


def insert_at(places: list[Coordinate], index: int) -> None:
    left = places[index - 1] if index else BEFORE_FIRST
    places.insert(index, between(left, places[index]) if index < len(places) else after(left if index else None))


def check(places: list[Coordinate]) -> None:
    assert places == sorted(places), "order is kept"
    assert len(set(places)) == len(places), "no place is given twice"
    assert all(place[-1] != 0 for place in places)
    assert len({Location(place).key() for place in places}) == len(places)


@given(st.lists(st.floats(0, 1), max_size=60))
def test_any_edit_script_keeps_order_and_gives_each_place_once(script):
    places: list[Coordinate] = []
    for share in script:
        insert_at(places, round(share * len(places)))
        check(places)


@given(st.randoms(use_true_random=False))
def test_a_script_around_one_spot_keeps_order(chance: random.Random):
    """Insertions beside the newest step are what makes coordinates long."""
    places: list[Coordinate] = [(1,), (2,)]
    index = 1
    for _ in range(60):
        insert_at(places, index)
        index = max(0, index + chance.choice((-1, 0, 0, 1)))
    check(places)


def test_thousands_of_random_insertions_all_get_places_of_their_own():
    for seed in range(5):
        chance = random.Random(seed)
        places: list[Coordinate] = []
        for _ in range(3000):
            insert_at(places, chance.randrange(len(places) + 1))
        check(places)


@given(locations, locations)
def test_keys_sort_as_locations_do(one, other):
    assert (one < other) == (one.coordinates < other.coordinates) == (one.key() < other.key())
    assert (one == other) == (one.coordinates == other.coordinates) == (one.key() == other.key())
    assert one != other or hash(one) == hash(other)


@given(locations)
def test_key_and_text_round_trip(location):
    assert Location.from_key(location.key()) == location
    assert Location.parse(str(location)) == location


@given(locations, locations, st.lists(small_coordinates, max_size=2))
def test_a_subtree_is_exactly_a_range_of_keys_with_its_prefix(scope, other, below):
    inside = Location(*scope.coordinates, *below)
    assert scope.contains(inside)
    assert inside.key().startswith(scope.key())
    assert scope.contains(other) == other.key().startswith(scope.key())
    assert ROOT.contains(other)


@given(st.lists(locations, min_size=1, max_size=12), locations)
def test_a_subtree_is_one_run_of_the_sorted_history(history, scope):
    flags = [scope.contains(location) for location in sorted(history)]
    first_to_last = flags[flags.index(True) : len(flags) - flags[::-1].index(True)] if any(flags) else []
    assert all(first_to_last)


@given(locations, small_coordinates)
def test_a_child_comes_after_its_scope_and_before_the_next_step(scope, coordinate):
    child = scope.child(coordinate)
    assert scope < child
    assert (child.scope, child.last) == (scope, coordinate)
    if scope != ROOT:
        assert child < scope.scope.child(after(scope.last))
