"""Locations: their order, their text, their keys, and the location between two neighbours, as tables."""

import itertools

import pytest

from resurgam.core.location import BEFORE_FIRST, ROOT, Coordinate, Location, after, between


def coordinate(text: str) -> Coordinate:
    return tuple(int(ordinate) for ordinate in text.split("."))


COORDINATES_IN_ORDER = ["0.0.1", "0.1", "0.2", "1", "1.0.1", "1.0.2", "1.1", "1.1.1", "1.2", "2", "10"]

LOCATIONS_IN_ORDER = [
    "{}",
    "{0.0.1}",
    "{0.1}",
    "{0.2}",
    "{1}",
    "{1.0.1}",
    "{1.0.2}",
    "{1.1}",
    "{1.1.1}",
    "{1.2}",
    "{2}",
    "{2, 0.1}",
    "{2, 1}",
    "{2, 1, 1}",
    "{2.1}",
    "{3}",
    "{10}",
    "{255}",
    "{256}",
    "{65536}",
]


@pytest.mark.parametrize(("smaller", "larger"), [*itertools.combinations(COORDINATES_IN_ORDER, 2)])
def test_coordinates_are_ordered_as_tuples_a_prefix_first(smaller, larger):
    assert coordinate(smaller) < coordinate(larger)


@pytest.mark.parametrize(("smaller", "larger"), [*itertools.combinations(LOCATIONS_IN_ORDER, 2)])
def test_locations_are_ordered_coordinate_by_coordinate_a_prefix_first(smaller, larger):
    left, right = Location.parse(smaller), Location.parse(larger)
    assert left < right
    assert left <= right
    assert right > left
    assert right >= left
    assert left != right
    assert left.key() < right.key()


def test_locations_of_a_single_number_are_shared():
    assert ROOT.child((7,)) is Location.parse("{7}") is ROOT.child((7,))
    assert Location.parse("{7}") == Location((7,))
    assert str(ROOT.child((7,))) == "{7}"
    assert ROOT.child((7, 1)) == Location((7, 1))
    assert Location((7,)).child((7,)) == Location((7,), (7,))


def test_few_locations_are_kept():
    assert ROOT.child((10**6,)) == Location((10**6,))
    assert ROOT.child((10**6,)) is not ROOT.child((10**6,))


@pytest.mark.parametrize("text", [*LOCATIONS_IN_ORDER, "{2, 11, 4.1}", "{4, 0.3.1, 0.6}", "{0}"])
def test_text_and_key_round_trip(text):
    location = Location.parse(text)
    assert str(location) == text
    assert str(location) == text, "the text is remembered and stays the same"
    assert repr(location) == f"Location.parse({text!r})"
    assert Location.from_key(location.key()) == location


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{ }", ROOT),
        ("  {1}\n", Location((1,))),
        ("{ 2 ,1.1 }", Location((2,), (1, 1))),
        ("{2,11,4.1}", Location((2,), (11,), (4, 1))),
    ],
)
def test_parse_ignores_spaces(text, expected):
    assert Location.parse(text) == expected


@pytest.mark.parametrize(
    "text", ["", "1", "{1", "1}", "{1,}", "{,1}", "{1..2}", "{1.}", "{.1}", "{-1}", "{a}", "{1 2}", "{{1}}", "{1};{2}"]
)
def test_parse_refuses_invalid_text(text):
    with pytest.raises(ValueError) as caught:
        Location.parse(text)
    assert str(caught.value) == f"a location must be text such as {{2, 1.1}}, got {text!r}"


@pytest.mark.parametrize("text", ["{1.0}", "{0.0}", "{2, 1.0}", "{1.2.0, 3}"])
def test_a_coordinate_does_not_end_in_zero(text):
    with pytest.raises(ValueError, match="must not end in 0"):
        Location.parse(text)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ((), "a coordinate must be one or more integers from 0, got ()"),
        ((-1,), "a coordinate must be one or more integers from 0, got (-1,)"),
        ((1, -2, 3), "a coordinate must be one or more integers from 0, got (1, -2, 3)"),
        ((1, 0), "a coordinate must not end in 0, got (1, 0)"),
    ],
)
def test_invalid_coordinates_are_refused(wrong, message):
    with pytest.raises(ValueError) as caught:
        Location((1,), wrong)
    assert str(caught.value) == message


def test_a_bare_zero_is_the_left_bound():
    assert BEFORE_FIRST == (0,)
    assert str(Location(BEFORE_FIRST)) == "{0}"


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        # between two appended steps, and further to the right of an inserted one
        ("1", "2", "1.1"),
        ("1.1", "2", "1.2"),
        ("1.2", "2", "1.3"),
        ("2", "3", "2.1"),
        ("4", "5", "4.1"),
        ("9", "10", "9.1"),
        # between two inserted steps
        ("1.1", "1.2", "1.1.1"),
        ("1.1.1", "1.2", "1.1.2"),
        ("1.1.1", "1.1.2", "1.1.1.1"),
        # before an inserted step
        ("1", "1.1", "1.0.1"),
        ("1", "1.0.1", "1.0.0.1"),
        ("1", "1.0.0.1", "1.0.0.0.1"),
        ("1.0.1", "1.1", "1.0.2"),
        ("1.0.0.1", "1.0.1", "1.0.0.2"),
        # before the first step of a scope
        ("0", "1", "0.1"),
        ("0.1", "1", "0.2"),
        ("0", "0.1", "0.0.1"),
        ("0", "0.0.1", "0.0.0.1"),
        ("0", "0.0.0.1", "0.0.0.0.1"),
        ("0.0.1", "0.1", "0.0.2"),
        ("0.3", "0.4", "0.3.1"),
        # where the history is sparse
        ("1", "3", "1.1"),
        ("2.1", "4", "2.2"),
        ("2.1", "3", "2.2"),
        ("2.2", "3", "2.3"),
        ("2.3", "2.3.1", "2.3.0.1"),
        ("2.3", "2.3.0.1", "2.3.0.0.1"),
        ("0", "2.1", "0.1"),
    ],
)
def test_between_returns_a_coordinate_between_its_neighbours(left, right, expected):
    assert between(coordinate(left), coordinate(right)) == coordinate(expected)


@pytest.mark.parametrize(("left", "right"), [("1", "1"), ("2", "1"), ("1.1", "1"), ("10", "9")])
def test_between_refuses_neighbours_in_the_wrong_order(left, right):
    with pytest.raises(ValueError, match="left must come before right"):
        between(coordinate(left), coordinate(right))


def by_length(left: Coordinate, right: Coordinate) -> Coordinate:
    """The naive rule that compares lengths only."""
    if len(left) < len(right):
        return (*left, 0, 1)
    if len(left) > len(right):
        return (*left[:-1], left[-1] + 1)
    return (*left, 1)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ((0,), (0, 0, 1), (0, 0, 0, 1)),
        ((1,), (1, 0, 1), (1, 0, 0, 1)),
        ((2, 3), (2, 3, 0, 1), (2, 3, 0, 0, 1)),
    ],
)
def test_inserting_before_a_zero_prefix_does_not_collide(left, right, expected):
    """A step inserted before {0.0.1} does not get {0.0.1} again, which would overwrite the existing one."""
    assert by_length(left, right) == right, "the rule by length gives the place that is taken"
    assert between(left, right) == expected
    assert left < between(left, right) < right


def test_a_second_insertion_on_the_same_side_does_not_overshoot():
    """Where the right neighbour has two zeros, the rule by length lands behind it."""
    assert by_length((1,), (1, 0, 0, 1)) > (1, 0, 0, 1)
    assert between((1,), (1, 0, 0, 1)) == (1, 0, 0, 0, 1)


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (None, (1,)),
        ((1,), (2,)),
        ((6,), (7,)),
        ((2, 1), (3,)),
        ((4, 0, 3), (5,)),
        ((0, 1), (1,)),
        ((0, 0, 1), (1,)),
    ],
)
def test_after_appends_a_single_ordinate_and_fills_no_gap(last, expected):
    assert after(last) == expected


def test_scope_last_and_child_are_consistent():
    location = Location.parse("{2, 11, 4.1}")
    assert location.scope == Location.parse("{2, 11}")
    assert location.last == (4, 1)
    assert location.scope.child(location.last) == location
    assert Location((1,)).scope == ROOT


def test_the_root_has_no_enclosing_scope():
    assert str(ROOT) == "{}"
    assert ROOT.key() == b""
    with pytest.raises(ValueError, match="the root of a workflow has no enclosing scope"):
        _ = ROOT.scope
    with pytest.raises(ValueError, match="the root of a workflow has no coordinate"):
        _ = ROOT.last


@pytest.mark.parametrize(
    ("outer", "inner", "expected"),
    [
        ("{}", "{}", True),
        ("{}", "{3, 1}", True),
        ("{2}", "{2}", True),
        ("{2}", "{2, 1, 1}", True),
        ("{2}", "{2.1}", False),
        ("{2}", "{20}", False),
        ("{2, 1}", "{2}", False),
        ("{2, 1}", "{2, 1.1}", False),
    ],
)
def test_a_location_contains_itself_and_its_descendants(outer, inner, expected):
    assert Location.parse(outer).contains(Location.parse(inner)) is expected


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("{1}", "01 01 00"),
        ("{0.1}", "01 00 01 01 00"),
        ("{2, 11, 4.1}", "01 02 00 01 0b 00 01 04 01 01 00"),
        ("{255}", "01 ff 00"),
        ("{256}", "02 01 00 00"),
    ],
)
def test_the_bytes_of_a_key_are_fixed_because_stores_hold_them(text, key):
    assert Location.parse(text).key() == bytes.fromhex(key)


@pytest.mark.parametrize("key", [b"\x00", b"\x01\x05", b"\x01", b"\x03\x05\x00", b"\x01\x01\x00\x01\x02"])
def test_from_key_refuses_invalid_bytes(key):
    """A truncated key must not be read as another location."""
    with pytest.raises(ValueError):
        Location.from_key(key)


def test_equality_and_hash_are_by_coordinates():
    assert Location((1,), (2, 1)) == Location.parse("{1, 2.1}")
    assert hash(Location((1,), (2, 1))) == hash(Location.parse("{1, 2.1}"))
    assert len({Location((1,)), Location.parse("{1}"), Location((1, 1))}) == 2


def test_a_location_does_not_equal_its_text_or_tuple():
    assert Location((1,)) != "{1}"
    assert Location((1,)) != ((1,),)
    with pytest.raises(TypeError):
        _ = Location((1,)) < "{2}"


def test_a_location_has_no_dict():
    with pytest.raises(AttributeError):
        Location((1,)).name = "x"


@pytest.mark.parametrize("text", ["", "{", "{a}", "{1.}"])
def test_invalid_location_text_is_refused(text):
    """The error shows an example of a location."""
    with pytest.raises(ValueError, match=r"a location must be text such as \{2, 1\.1\}, got "):
        Location.parse(text)
