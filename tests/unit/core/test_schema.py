"""A schema refuses no value that the codec accepts; for plain types it refuses all that the codec refuses."""

import enum
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, TypedDict, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import Meta, Raw, Struct

from resurgam.core.codec import codec_for
from resurgam.core.errors import SerializationError
from resurgam.core.schema import mismatch, schema_of

T = TypeVar("T")
ANY = codec_for(Any)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Lenient(enum.Enum):
    A = "a"

    @classmethod
    def _missing_(cls, value):
        return cls.A


@dataclass
class Line:
    sku: str
    count: int = 1


@dataclass
class Order:
    id: str
    lines: list[Line] = field(default_factory=list)
    express: bool = False
    color: Color | None = None
    parent: "Order | None" = None


class Cat(Struct, tag=True):
    lives: int


class Dog(Struct, tag=True):
    name: str = "Rex"


class Fish(Struct, tag_field="kind", tag=3):
    depth: float


class Shark(Struct, tag_field="kind", tag=4):
    teeth: int


class Point(Struct, array_like=True):
    x: int
    y: int = 0


class Mark(Struct, array_like=True, tag=True):
    x: int


class Strict(Struct, forbid_unknown_fields=True, rename="camel"):
    some_name: int
    other: str | None = None


class Pair(NamedTuple):
    left: int
    right: str = ""


class Address(TypedDict):
    street: str
    number: NotRequired[int]


class Box(Struct, Generic[T]):
    inside: T
    next: "Box[T] | None" = None


class Guarded(Struct):
    n: int

    def __post_init__(self):
        if self.n == 3:
            raise ValueError("three")


class Model(pydantic.BaseModel):
    n: int


PLAIN = [
    *(str, int, bool, float, None, list, dict, int | None, str | int | None, float | None, bool | str),
    *(list[int], list[str | None], dict[str, int], dict[str, list[bool]], tuple[int, str], tuple[int, ...], Pair),
    *(
        Line,
        Order,
        list[Order],
        Order | None,
        dict[str, Line],
        Address,
        Strict,
        Guarded | int,
        Box[int],
        Box[list[str]],
    ),
    *(Color, Level, Color | None, Literal["a", "b", 1] | None, list[Color], Cat | Dog, Cat | Dog | None, Fish | Shark),
    *(Annotated[int, Meta(ge=1, lt=9)], Annotated[str, Meta(min_length=1, max_length=3, pattern="^a")]),
    *(Annotated[list[int], Meta(min_length=1, max_length=2)], Annotated[float, Meta(gt=0.5, multiple_of=0.5)]),
    *(
        date,
        time,
        timedelta,
        UUID,
        Decimal,
        bytes,
        dict[int, int],
        dict[Color, int],
        Sequence[int],
        Mapping[str, float],
    ),
    *(datetime, list[datetime], datetime | None, dict[str, datetime | int]),
    Annotated[int, Meta(extra_json_schema={"type": "string", "minimum": 7}, title="n")],
]
OTHERS = [
    *(
        Any,
        object,
        list[Any],
        pathlib.Path,
        list[pathlib.Path],
        Model,
        dict[str, Model],
        Rights,
        Lenient,
        list[Lenient],
    ),
    *(
        set[int],
        frozenset[str],
        Annotated[set[int], Meta(min_length=2, max_length=2)],
        Point,
        list[Point],
        Mark,
        Cat,
        Guarded,
    ),
    *(Annotated[dict[int, int], Meta(min_length=1, max_length=2)], Raw, Annotated[bytes, Meta(max_length=2)]),
    *(Annotated[datetime, Meta(tz=True)], dict[date, int], dict[datetime, int], dict[float, int], complex, Cat | None),
    *(dict[Annotated[str, Meta(min_length=2)], int], dict[Level, Any], Annotated[dict[str, int], Meta(max_length=1)]),
]

TEXTS = st.one_of(
    st.text(max_size=3),
    st.sampled_from(
        [
            "red",
            "blue",
            "a",
            "aa",
            "1",
            "1.5",
            "2026-01-01",
            "2026-01-01T00:00:00Z",
            "10:00:00",
            "P1D",
            "aGk=",
            "$datetime",
        ]
    ),
    st.uuids().map(str),
)
DATETIMES = st.datetimes(
    timezones=st.sampled_from([UTC, ZoneInfo("Europe/Berlin")]),
    min_value=datetime(2000, 1, 1),  # noqa: DTZ001 -- given one
    allow_imaginary=False,  # a time that the clocks skip is refused
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 12),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXTS,
)
KEYS = st.sampled_from(
    [
        "id",
        "lines",
        "sku",
        "count",
        "express",
        "color",
        "parent",
        "lives",
        "name",
        "type",
        "kind",
        "depth",
        "teeth",
        "someName",
        "other",
        "street",
        "number",
        "inside",
        "next",
        "n",
        "x",
        "1",
        "01",
        "2.5",
        "red",
        "2026-01-01",
        "$datetime",
    ]
)
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)
WITH_DATETIMES = st.recursive(
    LEAVES | DATETIMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)
FITTING = {
    Color: st.sampled_from(["red", "blue"]),
    Line: st.fixed_dictionaries({"sku": TEXTS}, optional={"count": LEAVES}),
    Cat | Dog: st.fixed_dictionaries({"type": st.sampled_from(["Cat", "Dog", "Cow"]), "lives": LEAVES}),
    Fish | Shark: st.fixed_dictionaries({"kind": st.sampled_from([3, 4, 5, "3"]), "depth": LEAVES, "teeth": LEAVES}),
    Box[int]: st.fixed_dictionaries({"inside": LEAVES}),
    Strict: st.fixed_dictionaries({"someName": LEAVES}, optional={"other": LEAVES, "more": LEAVES}),
    Address: st.fixed_dictionaries({"street": TEXTS}, optional={"number": LEAVES, "more": LEAVES}),
}
FITTING[Order] = FITTING[Order | None] = st.fixed_dictionaries(
    {"id": TEXTS},
    optional={
        "lines": st.lists(FITTING[Line] | TREES, max_size=2),
        "express": LEAVES,
        "color": LEAVES | FITTING[Color],
    },
)
FITTING[list[Order]] = st.lists(FITTING[Order], max_size=2)
FITTING[Cat] = FITTING[Cat | None] = FITTING[Cat | Dog | None] = FITTING[Cat | Dog]


def refused(hint: Any, written: Raw) -> SerializationError | None:
    try:
        codec_for(hint).decode(written)
    except SerializationError as error:
        return error
    return None


def against(hint: Any, written: Raw) -> tuple[str, str] | None:
    schema = schema_of(hint)
    return None if schema is None else mismatch(schema, written)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("hint", [*PLAIN, *OTHERS], ids=str)
def test_values_refused_by_the_schema_are_refused_by_the_codec(hint, data) -> None:
    value = data.draw(FITTING.get(hint, TREES) | TREES | WITH_DATETIMES)
    written = ANY.encode(value)
    found, error = against(hint, written), refused(hint, written)

    assert found is None or error is not None


@settings(max_examples=30, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("hint", PLAIN, ids=str)
def test_for_plain_types_schema_and_codec_refuse_the_same_values(hint, data) -> None:
    value = data.draw(FITTING.get(hint, TREES) | TREES | WITH_DATETIMES)
    written = ANY.encode(value)
    found, error = against(hint, written), refused(hint, written)

    assert (found is None) == (error is None)


@settings(max_examples=100, deadline=None)
@given(schema=TREES, value=TREES)
@example(schema={"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}}}, value=1)
@example(schema={"anyOf": 3}, value=1)
@example(schema={"type": "object", "properties": 3}, value={"a": 1})
@example(schema={"type": "string", "pattern": "("}, value="a")
@example(schema={"type": "text"}, value=1)
@example(schema={"type": "string", "format": "email"}, value=1)
def test_a_schema_that_is_not_understood_refuses_nothing(schema, value) -> None:
    assert mismatch(Raw(msgspec.json.encode(schema)), ANY.encode(value)) is None


def test_a_value_nested_too_deeply_is_not_refused() -> None:
    schema = schema_of(Box[int])
    assert schema is not None
    deep = b'{"inside":1,"next":' * 900 + b"null" + b"}" * 900

    assert mismatch(schema, Raw(deep)) is None


@pytest.mark.parametrize("hint", [Any, object, pathlib.Path, Lenient, Rights, Raw])
def test_types_that_only_code_can_judge_have_no_schema(hint) -> None:
    assert schema_of(hint) is None


def test_a_type_whose_schema_is_too_large_has_none() -> None:
    many = msgspec.defstruct("Many", [(f"field_{number}", int) for number in range(2000)])

    assert schema_of(many) is None


def test_an_unhashable_hint_has_a_schema() -> None:
    assert schema_of(Annotated[int, ["anything"]]) == Raw(b'{"type":"integer"}')


@pytest.mark.parametrize(
    ("hint", "value", "path", "reason"),
    [
        (bool, "yes", "", "Expected bool, got str"),
        (int, None, "", "Expected int, got null"),
        (int | None, "one", "", "Expected int | null, got str"),
        (list[int], [1, "two"], "[1]", "Expected int, got str"),
        (dict[str, int], {"a b": 1.5}, "['a b']", "Expected int, got float"),
        (dict[int, int], {"a": 1}, "['a']", "Expected int, got str"),
        (Color, "green", "", "Expected 'red' | 'blue', got 'green'"),
        (Color | None, 7, "", "Expected 'red' | 'blue' | null, got int"),
        (Order, {"id": "o", "lines": [{"sku": "s", "count": "2"}]}, ".lines[0].count", "Expected int, got str"),
        (Order | None, {"lines": []}, "", "Object missing required field id"),
        (Order | None, {"id": 7}, ".id", "Expected str, got int"),
        (Cat | Dog, {"lives": 1}, "", "Object missing required field type"),
        (Cat | Dog, {"type": "Cow"}, ".type", "Expected 'Cat' | 'Dog', got 'Cow'"),
        (Cat | Dog, {"type": "Cat", "lives": "9"}, ".lives", "Expected int, got str"),
        (Strict, {"someName": 1, "more": 2}, "", "Object contains unknown field more"),
        (tuple[int, str], [1], "", "Expected array of length 2, got 1"),
        (Annotated[list[int], Meta(max_length=1)], [1, 2], "", "Expected array of length at most 1, got 2"),
        (Annotated[int, Meta(ge=1)], 0, "", "Expected int >= 1"),
        (UUID, "x", "", "Expected str matching regex '^[0-9a-fA-F-]{32,36}$'"),
        (str, datetime(2026, 1, 1, tzinfo=UTC), "", "Expected str, got datetime"),
    ],
)
def test_a_mismatch_names_its_path_and_the_expected_type(hint, value, path, reason) -> None:
    written = ANY.encode(value)

    assert refused(hint, written) is not None
    assert against(hint, written) == (path, reason)
