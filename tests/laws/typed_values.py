"""Type hints of every kind that the codec takes, and values for them: fitting ones, and some that only look as if they fit."""

import enum
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from ipaddress import IPv4Address, IPv6Network
from pathlib import PurePosixPath
from types import UnionType
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypedDict, TypeVar, Union, get_args, get_origin
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pydantic
from hypothesis import strategies as st

T = TypeVar("T")
BERLIN = ZoneInfo("Europe/Berlin")
ODD = timezone(timedelta(hours=1, seconds=1))


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Access(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass
class Person:
    name: str
    tags: set[str] = field(default_factory=set)
    _age: int = 0
    seen: int = field(default=0, init=False)


@dataclass
class Author(Person):
    books: int = 0


@dataclass(frozen=True)
class Key:
    left: int
    right: str = field(default="", compare=False)


@dataclass
class Box(Generic[T]):
    item: T


@dataclass
class Leaf:
    value: float


@dataclass
class Node:
    children: list["Leaf | Node"]


class Point(msgspec.Struct, rename="camel", omit_defaults=True):
    north_west: int = 0
    when: datetime | None = None


class Row(msgspec.Struct, array_like=True):
    cells: list[bytes]


class Cash(msgspec.Struct, tag=True):
    amount: Decimal


class Card(msgspec.Struct, tag=True):
    number: str


class Pair(NamedTuple):
    left: int
    right: Person | None = None


class Settings(TypedDict, total=False):
    host: str
    port: int


class Line(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    sku: str = pydantic.Field(alias="SKU")
    price: Decimal = Decimal(0)

    @pydantic.computed_field
    @property
    def shown(self) -> str:
        return f"{self.sku}: {self.price}"


class Order(pydantic.BaseModel):
    lines: list[Line] = []
    tags: frozenset[str] = frozenset()
    note: str = pydantic.Field(default="", exclude=True)


class Rush(Order):
    by: int = 0


def moments() -> st.SearchStrategy[datetime]:
    zones = st.sampled_from([UTC, BERLIN, timezone(timedelta(hours=-3)), ODD])
    return st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(2100, 1, 1), timezones=zones)  # noqa: DTZ001


TEXTS = st.text(max_size=5) | st.sampled_from(["$datetime", "$type", "1", "null"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS | moments(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
PEOPLE = st.builds(Person, TEXTS, st.sets(TEXTS, max_size=3), st.integers(0, 3))
LINES = st.builds(Line, SKU=TEXTS, price=st.decimals(allow_nan=False, allow_infinity=False))
NODES = st.recursive(
    st.builds(Leaf, st.floats(allow_nan=False)),
    lambda inner: st.builds(Node, st.lists(inner, max_size=3)),
    max_leaves=4,
)

LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    None: st.none(),
    bool: st.booleans(),
    int: st.integers(),
    float: st.floats(),
    str: TEXTS | st.characters(),
    bytes: st.binary(max_size=5),
    Decimal: st.decimals(allow_nan=False) | st.just(Decimal("NaN")),
    UUID: st.uuids(),
    datetime: moments(),
    date: st.dates(),
    time: st.times(timezones=st.sampled_from([None, UTC, ODD, BERLIN])),
    timedelta: st.timedeltas(),
    Colour: st.sampled_from(Colour),
    Level: st.sampled_from(Level),
    Access: st.sampled_from([Access(0), Access.READ, Access.READ | Access.WRITE]),
    Literal["a", 1]: st.sampled_from(["a", 1]),
    Annotated[int, msgspec.Meta(ge=0)]: st.integers(),
    Fraction: st.fractions(),
    complex: st.complex_numbers(),
    PurePosixPath: st.builds(PurePosixPath, st.text("ab/.", max_size=4)),
    IPv4Address: st.ip_addresses(v=4),
    IPv6Network: st.just(IPv6Network("fe80::/10")),
    ZoneInfo: st.just(BERLIN),
    Any: JSON,
    Person: PEOPLE | st.builds(Author, TEXTS),
    Key: st.builds(Key, st.integers(), TEXTS),
    Leaf: st.builds(Leaf, st.floats()),
    Node: NODES.filter(lambda one: isinstance(one, Node)),
    Point: st.builds(Point, st.integers(), st.none() | moments()),
    Row: st.builds(Row, st.lists(st.binary(max_size=3), max_size=2)),
    Cash: st.builds(Cash, st.decimals()),
    Card: st.builds(Card, TEXTS),
    Pair: st.builds(Pair, st.integers(), st.none() | PEOPLE | st.builds(Author, TEXTS)),
    Settings: st.fixed_dictionaries({}, optional={"host": TEXTS, "port": st.integers(), "extra": st.none()}),
    Line: LINES,
    Order: st.builds(
        Order, lines=st.lists(LINES, max_size=2), tags=st.frozensets(TEXTS, max_size=3), note=st.sampled_from(["", "x"])
    )
    | st.builds(Rush, by=st.integers(0, 1)),
}
UNIONS = (
    *(int | str | None, int | float | Colour, Person | Key, Leaf | Node | None, Cash | Card, Person | Order | int),
    *(Key | Point, str | None, Order | None, list[int] | Settings, bool | datetime | None),
)
KEYS = (str, int, int | str, float, UUID, date, datetime, Colour, Level, Any, bool)
HASHABLE = (
    int,
    str,
    bytes,
    Decimal,
    UUID,
    datetime,
    date,
    Colour,
    Key,
    tuple[int, str],
    frozenset[str],
    int | str | None,
)


def _hints(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        inner.map(lambda one: list[one]),
        st.lists(inner, max_size=3).map(lambda some: tuple[tuple(some)]),
        inner.map(lambda one: tuple[one, ...]),
        st.tuples(st.sampled_from(KEYS), inner).map(lambda pair: dict[pair]),
        inner.map(lambda one: Box[one]),
        st.sampled_from(HASHABLE).map(lambda one: set[one]),
        st.sampled_from(HASHABLE).map(lambda one: frozenset[one]),
    )


HINTS = st.recursive(st.sampled_from([*LEAVES, *UNIONS]), _hints, max_leaves=3)


def values_of(hint: Any) -> st.SearchStrategy[Any]:  # noqa: PLR0911 -- one for each kind
    """Draw values of a hint, among them such as its codec must refuse."""
    if hint in LEAVES:
        return LEAVES[hint]
    if hint is type(None):
        return st.none()
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return st.one_of(*map(values_of, args))
    if origin is tuple and args[-1:] != (Ellipsis,):
        return st.tuples(*map(values_of, args))
    if origin is dict:
        return st.dictionaries(_hashable(args[0]), values_of(args[1]), max_size=3)
    if origin is Box:
        return st.builds(Box, values_of(args[0]))
    made: dict[Any, Callable[..., st.SearchStrategy[Any]]] = {list: st.lists, set: st.sets, frozenset: st.frozensets}
    if origin is tuple:
        return st.lists(values_of(args[0]), max_size=3).map(tuple)
    return made[origin](_hashable(args[0]) if origin is not list else values_of(args[0]), max_size=3)


def _hashable(hint: Any) -> st.SearchStrategy[Any]:
    return TEXTS if hint is Any else values_of(hint)


def is_same(one: Any, other: Any) -> bool:  # noqa: PLR0911 -- one for each kind
    """Whether two values are of the same types and equal, through and through."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, dict):
        return len(one) == len(other) and all(
            is_same(key, key_of) and is_same(one[key], other[key_of]) for key, key_of in zip(one, other, strict=True)
        )
    if is_dataclass(one):
        return all(is_same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    if isinstance(one, msgspec.Struct):
        return all(is_same(getattr(one, name), getattr(other, name)) for name in one.__struct_fields__)
    if isinstance(one, datetime | time):
        return one == other and one.utcoffset() == other.utcoffset() and str(one.tzinfo) == str(other.tzinfo)
    return str(one) == str(other) if isinstance(one, Decimal) else bool(one == other)
