"""Round trips of values through JSON, as a table; and refused values, with the path to the field at fault."""

import enum
import json
import math
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypedDict, TypeVar
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from resurgam.core.codec import Codec, check_size, codec_for
from resurgam.core.errors import PayloadTooLarge, SerializationError

T = TypeVar("T")
BERLIN, LISBON = ZoneInfo("Europe/Berlin"), ZoneInfo("Europe/Lisbon")
SUMMER = datetime(2026, 3, 29, 3, 0, tzinfo=BERLIN)
FIRST_HALF_PAST_TWO = datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN)
SECOND_HALF_PAST_TWO = datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN)
IN_UTC = datetime(2026, 10, 25, 2, 30, 0, 123456, tzinfo=UTC)
AT_OFFSET = datetime(2026, 10, 25, 2, 30, tzinfo=timezone(timedelta(hours=5, minutes=30)))
ODD_OFFSET = datetime(2026, 10, 25, 2, 30, tzinfo=timezone(timedelta(seconds=3601)))
SKIPPED = datetime(2026, 3, 29, 2, 30, tzinfo=BERLIN)
NAIVE = datetime(2026, 10, 25, 2, 30)  # noqa: DTZ001 -- it is to be refused
SOME_ID = uuid.UUID("12345678-1234-5678-1234-567812345678")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Word(enum.StrEnum):
    YES = "yes"


@dataclass
class Line:
    sku: str
    quantity: int = 1


@dataclass(frozen=True)
class Order:
    id: uuid.UUID
    lines: list[Line]
    due: datetime | None = None
    tags: frozenset[str] = field(default_factory=frozenset)


@dataclass
class Box(Generic[T]):
    item: T


@dataclass
class Tree:
    value: int
    children: list["Tree"] = field(default_factory=list)


class Point(msgspec.Struct):
    x: float
    y: float


class Cash(msgspec.Struct, tag=True):
    amount: Decimal


class Card(msgspec.Struct, tag=True):
    number: str


class Pair(NamedTuple):
    left: int
    right: datetime | None


class Settings(TypedDict):
    host: str
    port: int


class Customer(pydantic.BaseModel):
    name: str
    score: float | None = None
    seen: datetime | None = None


@dataclass
class Account:
    owner: Customer
    opened: datetime | None = None


ALL_BESIDE_A_ZONE = (
    b"\xff",
    Decimal("1.10"),
    timedelta(1),
    date(2026, 1, 1),
    Colour.RED,
    Access.READ,
    Path("x"),
    SUMMER,
)

ROUND_TRIPS = [
    (None, None, "null"),
    (bool, True, "true"),
    (int, 2**80, "1208925819614629174706176"),
    (int, -(2**80), "-1208925819614629174706176"),
    (float, 0.1, "0.1"),
    (str, 'ünï "quoted" \n 😀', '"ünï \\"quoted\\" \\n 😀"'),
    (str, "$datetime", '"$datetime"'),
    (bytes, b"\xff\x00", '"/wA="'),
    (list[int], [1, 2], "[1,2]"),
    (tuple[int, str], (1, "a"), '[1,"a"]'),
    (tuple[int, ...], (), "[]"),
    (tuple[()], (), "[]"),
    (set[int], {3}, "[3]"),
    (frozenset[str], frozenset({"a"}), '["a"]'),
    (dict[str, int], {"a": 1}, '{"a":1}'),
    (dict[int, str], {1: "a", 2**70: "b"}, '{"1":"a","1180591620717411303424":"b"}'),
    (dict[uuid.UUID, int], {SOME_ID: 1}, '{"12345678-1234-5678-1234-567812345678":1}'),
    (dict[int, str], {1: "$datetime"}, '{"1":"$datetime"}'),
    (Literal["a", 1], 1, "1"),
    (Literal["a", 1], "a", '"a"'),
    (int | None, None, "null"),
    (int | str | None, "5", '"5"'),
    (Annotated[int, msgspec.Meta(ge=1)], 1, "1"),
    (Colour, Colour.BLUE, '"blue"'),
    (Level, Level.HIGH, "2"),
    (Word, Word.YES, '"yes"'),
    (Access, Access.READ | Access.WRITE, "3"),
    (Access, Access(0), "0"),
    (dict[Colour, int], {Colour.RED: 1}, '{"red":1}'),
    (date, date(2026, 2, 28), '"2026-02-28"'),
    (time, time(23, 59, 59, 5), '"23:59:59.000005"'),
    (time, time(1, 2, tzinfo=UTC), '"01:02:00Z"'),
    (timedelta, timedelta(days=400, microseconds=1), '"P400DT0.000001S"'),
    (timedelta, -timedelta(seconds=1.5), '"-PT1.5S"'),
    (uuid.UUID, SOME_ID, '"12345678-1234-5678-1234-567812345678"'),
    (Decimal, Decimal("1.10"), '"1.10"'),
    (Fraction, Fraction(1, 3), '"1/3"'),
    (complex, 1 - 2j, '"(1-2j)"'),
    (Path, Path("/var/log"), '"/var/log"'),
    (PurePosixPath, PurePosixPath("a/b"), '"a/b"'),
    (Path | None, Path("x"), '"x"'),
    (dict[str, Path], {"a": Path("x")}, '{"a":"x"}'),
    (IPv4Address, ip_address("10.0.0.1"), '"10.0.0.1"'),
    (IPv6Address, ip_address("::1"), '"::1"'),
    (IPv4Network, ip_network("10.0.0.0/8"), '"10.0.0.0/8"'),
    (IPv6Network, ip_network("fe80::/10"), '"fe80::/10"'),
    (ZoneInfo, BERLIN, '"Europe/Berlin"'),
    (Line, Line("book", 2), '{"sku":"book","quantity":2}'),
    (
        Order,
        Order(SOME_ID, [Line("book")], IN_UTC, frozenset({"new"})),
        (
            '{"id":"12345678-1234-5678-1234-567812345678","lines":[{"sku":"book","quantity":1}],'
            '"due":"2026-10-25T02:30:00.123456Z","tags":["new"]}'
        ),
    ),
    (Box[int], Box(1), '{"item":1}'),
    (Box[Line], Box(Line("book")), '{"item":{"sku":"book","quantity":1}}'),
    (list[Box[Box[str]]], [Box(Box("a"))], '[{"item":{"item":"a"}}]'),
    (Tree, Tree(1, [Tree(2), Tree(3, [Tree(4)])]), None),
    (Point, Point(1.5, 2.0), '{"x":1.5,"y":2.0}'),
    (Cash | Card, Cash(Decimal("5.00")), '{"type":"Cash","amount":"5.00"}'),
    (Cash | Card, Card("42"), '{"type":"Card","number":"42"}'),
    (Pair, Pair(1, None), "[1,null]"),
    (Settings, {"host": "a", "port": 1}, '{"host":"a","port":1}'),
    (Customer, Customer(name="Ann", score=1.5), '{"name":"Ann","score":1.5,"seen":null}'),
    (Customer | None, None, "null"),
    (list[Customer], [Customer(name="Ann")], '[{"name":"Ann","score":null,"seen":null}]'),
    (
        Account,
        Account(Customer(name="Ann"), IN_UTC),
        '{"owner":{"name":"Ann","score":null,"seen":null},"opened":"2026-10-25T02:30:00.123456Z"}',
    ),
    (datetime, IN_UTC, '"2026-10-25T02:30:00.123456Z"'),
    (datetime, AT_OFFSET, '"2026-10-25T02:30:00+05:30"'),
    (datetime, ODD_OFFSET, '{"$datetime":"2026-10-25T02:30:00+01:00:01"}'),
    (datetime, SUMMER, '{"$datetime":"2026-03-29T03:00:00+02:00[Europe/Berlin]"}'),
    (datetime, FIRST_HALF_PAST_TWO, '{"$datetime":"2026-10-25T02:30:00+02:00[Europe/Berlin]"}'),
    (datetime, SECOND_HALF_PAST_TWO, '{"$datetime":"2026-10-25T02:30:00+01:00[Europe/Berlin]"}'),
    (Any, SECOND_HALF_PAST_TWO, '{"$datetime":"2026-10-25T02:30:00+01:00[Europe/Berlin]"}'),
    (
        list[datetime],
        [SUMMER, IN_UTC, AT_OFFSET],
        (
            '[{"$datetime":"2026-03-29T03:00:00+02:00[Europe/Berlin]"},'
            '{"$datetime":"2026-10-25T02:30:00.123456+00:00"},{"$datetime":"2026-10-25T02:30:00+05:30"}]'
        ),
    ),
    (dict[str, datetime], {"a": SUMMER, "b": SUMMER.astimezone(LISBON)}, None),
    (dict[int, datetime], {1: SUMMER}, '{"1":{"$datetime":"2026-03-29T03:00:00+02:00[Europe/Berlin]"}}'),
    (dict[uuid.UUID, datetime], {SOME_ID: SUMMER}, None),
    (dict[str, list[tuple[datetime, int]]], {"a": [(SUMMER, 1)]}, None),
    (set[datetime], {SUMMER}, None),
    (Pair, Pair(1, SUMMER), None),
    (Box[datetime], Box(SECOND_HALF_PAST_TWO), None),
    (tuple[Box[int], Box[datetime]], (Box(1), Box(SUMMER)), None),
    (Order, Order(SOME_ID, [Line("book")], SUMMER, frozenset({"a"})), None),
    (Account, Account(Customer(name="Ann"), SUMMER), None),
    (tuple[bytes, Decimal, timedelta, date, Colour, Access, Path, datetime], ALL_BESIDE_A_ZONE, None),
]


@pytest.mark.parametrize(("hint", "value", "text"), ROUND_TRIPS)
def test_values_round_trip_by_their_hint(hint, value, text):
    codec = Codec(hint)
    data = codec.encode(value)
    again = codec.decode(data)
    assert again == value
    assert type(again) is type(value)
    assert repr(again) == repr(value), "the zone and the fold of a datetime are not seen by =="
    assert text is None or bytes(data).decode() == text
    assert bytes(codec.check(value)) == bytes(data)


def test_both_halves_past_two_of_the_night_the_clocks_go_back_stay_apart():
    codec = Codec(list[datetime])
    first, second = codec.decode(codec.encode([FIRST_HALF_PAST_TWO, SECOND_HALF_PAST_TWO]))
    assert (first.fold, second.fold) == (0, 1)
    assert first.tzinfo is second.tzinfo is BERLIN
    assert second.timestamp() - first.timestamp() == 3600


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (dict[str, str], {"$datetime": "tomorrow"}),
        (dict[str, str], {"$datetime": "2026-01-01"}),
        (Any, {"$datetime": "tomorrow"}),
        (Any, {"$datetime": "2026-01-01"}),
        (Any, [{"$datetime": None}]),
        (Any, {"$datetime": "tomorrow", "other": 1}),
        (dict[str, Any], {"when": SUMMER, "user": {"$datetime": "tomorrow"}}),
    ],
)
def test_a_users_dict_with_the_datetime_key_round_trips(hint, value):
    codec = Codec(hint)
    assert codec.decode(codec.encode(value)) == value


def test_a_datetime_key_keeps_its_zone_or_is_refused():
    codec = Codec(dict[datetime, int])
    try:
        data = codec.encode({SECOND_HALF_PAST_TWO: 1})
    except SerializationError:
        return
    assert repr(codec.decode(data)) == repr({SECOND_HALF_PAST_TWO: 1})


def test_a_time_with_a_named_zone_keeps_it_or_is_refused():
    codec = Codec(time)
    try:
        data = codec.encode(time(1, 2, tzinfo=BERLIN))
    except SerializationError:
        return
    assert codec.decode(data).tzinfo is BERLIN


def test_a_raw_value_is_passed_through():
    codec = Codec(Raw)
    assert codec.decode(codec.encode(Raw(b'{"a": 1}'))) == Raw(b'{"a": 1}')


def test_a_generic_without_arguments_accepts_any_item():
    assert Codec(Box).decode(Codec(Box).encode(Box([1, {"a": None}]))) == Box([1, {"a": None}])


def test_pydantic_keeps_the_moment_of_a_zoned_datetime():
    """A model is encoded by pydantic, which keeps the moment, but only the offset of a zone."""
    codec = Codec(Customer)
    again = codec.decode(codec.encode(Customer(name="Ann", seen=SUMMER)))
    assert again.seen.timestamp() == SUMMER.timestamp()


def test_codecs_are_built_once_per_hashable_hint():
    assert codec_for(list[int]) is codec_for(list[int])
    unhashable = Annotated[int, ["a list"]]
    assert codec_for(unhashable).decode(b"5") == 5


SELF_CONTAINING: list[object] = []
SELF_CONTAINING.append(SELF_CONTAINING)
SELF_CONTAINING_DICT: dict[str, object] = {}
SELF_CONTAINING_DICT["me"] = [SELF_CONTAINING_DICT]
NO_ZONE = "2026-10-25T02:30:00 has no time zone; use aware datetimes"
NO_NAN = "nan has no JSON form; use None, a string or Decimal"
NO_INF = "inf has no JSON form; use None, a string or Decimal"
NESTED = "the value contains itself, or is nested too deeply"
SURROGATE = "'utf-8' codec can't encode character '\\ud800' in position 0: surrogates not allowed"


COLLIDE = "the keys 1 and '1' are both written as '1'; use keys of one type"
ODD_TIME = "01:00:00+01:00:01 has an offset with seconds, which JSON cannot keep; use whole minutes"


@pytest.mark.parametrize(
    ("hint", "value", "path", "reason"),
    [
        (datetime, NAIVE, "order", NO_ZONE),
        (Any, {"a": [1, NAIVE]}, "order['a'][1]", NO_ZONE),
        (Order, Order(SOME_ID, [], NAIVE), "order.due", NO_ZONE),
        (tuple[Box[int], Box[datetime]], (Box(1), Box(NAIVE)), "order[1].item", NO_ZONE),
        (Customer, Customer(name="Ann", seen=NAIVE), "order.seen", NO_ZONE),
        (float, math.nan, "order", NO_NAN),
        (float, math.inf, "order", NO_INF),
        (float | None, math.nan, "order", NO_NAN),
        (Any, {"a": (1.0, -math.inf)}, "order['a'][1]", "-" + NO_INF),
        (Point, Point(1.0, math.inf), "order.y", NO_INF),
        (list[Point | None], [None, Point(math.nan, 1.0)], "order[1].x", NO_NAN),
        (int | None, math.nan, "order", NO_NAN),
        (list[int | None], [None, math.nan], "order[1]", NO_NAN),
        (Customer, Customer(name="Ann", score=math.nan), "order.score", NO_NAN),
        (Any, {"a": {1: 1, "1": 2}}, "order['a']", COLLIDE),
        (dict[int | str, Any], {1: 1, "1": 2}, "order", COLLIDE),
        (datetime, SKIPPED, "order", "2026-03-29T02:30:00+01:00 does not exist in Europe/Berlin: the clocks skip it"),
        (time, time(1, tzinfo=ODD_OFFSET.tzinfo), "order", ODD_TIME),
        (str, "\ud800", "order", SURROGATE),
        (Any, {"a": ["ok", "\ud800"]}, "order['a'][1]", SURROGATE),
        (list[Line], [Line("\ud800")], "order[0].sku", SURROGATE),
        (Any, object(), "order", "values of type object cannot be written"),
        (Any, {"a": [1, {"b": object()}]}, "order['a'][1]['b']", "values of type object cannot be written"),
        (Box[Any], Box([Point(1.0, object())]), "order.item[0].y", "values of type object cannot be written"),
        (dict[str, list[int]], {"a": [threading.Event()]}, "order['a'][0]", "values of type Event cannot be written"),
        (Any, {"f": {print}}, "order['f'][0]", "values of type builtin_function_or_method cannot be written"),
        (Any, SELF_CONTAINING, "order", NESTED),
        (list[int], SELF_CONTAINING, "order", NESTED),
        (Any, SELF_CONTAINING_DICT, "order", NESTED),
        (Any, {"a": [{(1, 2): 3}]}, "order['a'][0]", "values of type tuple cannot be written"),
    ],
)
def test_values_without_a_json_form_are_refused_with_their_path(hint, value, path, reason):
    with pytest.raises(SerializationError) as caught:
        Codec(hint).encode(value, "order")
    assert (caught.value.path, caught.value.reason) == (path, reason)
    assert str(caught.value) == f"{path}: {reason}"


@pytest.mark.parametrize(
    ("key", "reason"),
    [(NAIVE, "has no time zone"), (SUMMER, "has a named zone"), (ODD_OFFSET, "has an offset with seconds")],
)
def test_a_datetime_that_a_key_cannot_keep_is_refused(key, reason):
    with pytest.raises(SerializationError, match=reason):
        Codec(dict[datetime, int]).encode({key: 1})


@dataclass
class Basket:
    tags: set[str]
    more: Any = None


class Labels(pydantic.RootModel[set[str]]):
    pass


class Shelf(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    tags: set[str] = pydantic.Field(alias="Tags")


@pytest.mark.parametrize(
    ("hint", "value", "text"),
    [
        (set[str], {"pink", "blue", "red", "green"}, '["blue","green","pink","red"]'),
        (dict[int, list[set[int]]], {1: [{9, 1, 17}]}, '{"1":[[1,17,9]]}'),
        (frozenset[frozenset[str]], frozenset({frozenset("ba"), frozenset("c")}), '[["a","b"],["c"]]'),
    ],
)
def test_a_set_is_written_in_the_order_of_its_members_json(hint, value, text):
    data = Codec(hint).check(value)
    assert bytes(data).decode() == text
    assert Codec(hint).decode(data) == value


def test_nested_sets_are_written_in_one_order():
    words = {"pink", "blue", "red", "green"}
    value = [Basket(words, {"x": (words,)}), Labels(words), Shelf(Tags=words, others=words)]
    again = json.loads(bytes(Codec(Any).encode(value)))
    ordered = sorted(words)
    assert again == [
        {"tags": ordered, "more": {"x": [ordered]}},
        ordered,
        {"Tags": ordered, "others": ordered},
    ]


@pytest.mark.parametrize(
    ("hint", "data", "path", "reason"),
    [
        (int, '"5"', "order", "Expected int, got str"),
        (list[Line], '[{"sku":"a"},{"sku":5}]', "order[1].sku", "Expected str, got int"),
        (Order, '{"lines":[]}', "order", "Object missing required field id"),
        (dict[str, Box[int]], '{"a":{"item":null}}', "order[...].item", "Expected int, got null"),
        (dict[int, str], '{"x":"a"}', "order", "Expected int, got str"),
        (list[dict[int, str]], '[{"x":"a"}]', "order[0]", "Expected int, got str"),
        (list[Path], "[5]", "order[0]", "expected the text of a Path, got 5"),
        (list[Fraction], '["x"]', "order[0]", "Invalid literal for Fraction: 'x'"),
        (Colour, '"green"', "order", "Invalid enum value 'green'"),
        (int, "nope", "order", "JSON is malformed: invalid character (byte 4)"),
        (datetime, '{"$datetime":"soon"}', "order", "Invalid isoformat string: 'soon'"),
        (list[int], '[{"$datetime":"2026-01-01T00:00:00+00:00"}]', "order[0]", "Expected int, got datetime"),
    ],
)
def test_values_that_do_not_fit_the_hint_are_refused_with_their_path(hint, data, path, reason):
    with pytest.raises(SerializationError) as caught:
        Codec(hint).decode(data.encode(), "order")
    assert (caught.value.path, caught.value.reason) == (path, reason)


@pytest.mark.parametrize(
    ("hint", "data", "reason"),
    [
        (datetime, '{"$datetime":"2026-01-01T00:00:00+00:00[Mars/Olympus]"}', "Mars/Olympus"),
        (ZoneInfo, '"Mars/Olympus"', "Mars/Olympus"),
        (list[Fraction], '["1/0"]', "Fraction"),
        (list[Customer], '[{"name":5}]', "name"),
    ],
)
def test_an_exception_of_a_custom_decoder_is_a_serialization_error(hint, data, reason):
    with pytest.raises(SerializationError, match=reason):
        Codec(hint).decode(data.encode())


REMEDY = "Use dataclasses, msgspec structs, pydantic models, enums or plain JSON types"


class Plain:
    pass


class MixedEnum(enum.Enum):
    ONE = 1
    TWO = "two"


@pytest.mark.parametrize(
    ("hint", "path", "reason"),
    [
        (Line | dict[str, int], None, "Type unions may not contain more than one dict-like type"),
        (Callable[[int], int], "collections.abc.Callable[[int], int]", "values of type Callable cannot be written"),
        (list[Callable[..., Any]], None, "values of type Callable cannot be written"),
        (Plain, "Plain", "values of type Plain cannot be written"),
        (dict[str, Box[Plain]], None, "values of type Plain cannot be written"),
        (threading.Event, "Event", "values of type Event cannot be written"),
        (MixedEnum, "MixedEnum", "Enums must contain either all str or all int values"),
        (Path | str, None, "Type unions containing a custom type may not contain any additional types"),
        (5, "5", "Type '5' is not supported"),
        ("Order", "Order", "is not supported"),
    ],
)
def test_a_bad_hint_is_refused_when_the_codec_is_built(hint, path, reason):
    with pytest.raises(SerializationError) as caught:
        Codec(hint)
    assert caught.value.path == (str(hint) if path is None else path)
    assert caught.value.reason.startswith(reason) or reason in caught.value.reason
    assert caught.value.reason.endswith(REMEDY)


def test_check_refuses_a_value_of_another_type():
    with pytest.raises(SerializationError) as caught:
        Codec(list[Line]).check([Line("a"), Line("b", "many")], "order")
    assert str(caught.value) == "order[1].quantity: Expected int, got str"


json_trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
).filter(lambda tree: "$datetime" not in str(tree))


@given(json_trees)
def test_any_json_tree_round_trips_as_any(tree):
    codec = codec_for(Any)
    assert codec.decode(codec.encode(tree)) == tree


@given(st.datetimes(min_value=NAIVE.replace(year=1900), timezones=st.timezones() | st.just(UTC), allow_imaginary=False))
def test_any_aware_datetime_keeps_its_zone_and_its_moment(moment):
    again = codec_for(datetime).decode(codec_for(datetime).encode(moment))
    assert again.replace(tzinfo=None, fold=0) == moment.replace(tzinfo=None, fold=0)
    assert again.utcoffset() == moment.utcoffset()
    assert again.tzinfo is moment.tzinfo


def test_a_value_larger_than_the_limit_is_refused():
    written = codec_for(str).encode("ä" * 4)  # 8 bytes and two quotes

    assert check_size(10, written, "signal 'pay'") is written
    with pytest.raises(PayloadTooLarge) as caught:
        check_size(9, written, "signal 'pay'")

    assert (caught.value.path, caught.value.size, caught.value.limit) == ("signal 'pay'", 10, 9)


def nested(depth):
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def test_what_is_encoded_can_be_read_further_down_the_stack():
    """Whatever is not refused: else a result is stored that nobody can load."""

    def read(written, frames):
        return read(written, frames - 1) if frames else codec_for(Any).decode(written, "value")

    for depth in range(600, 1000):
        try:
            written = check_size(10_000, codec_for(Any).encode(nested(depth)), "value")
        except SerializationError:
            assert depth > 700
        else:
            read(written, 50)


def test_a_value_that_is_nested_too_deeply_is_refused():
    with pytest.raises(SerializationError, match="nested too deeply"):
        check_size(10**6, Raw(b"[" * 100_000 + b"]" * 100_000), "value")
