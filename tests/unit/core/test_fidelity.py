"""Values that do not round-trip are refused when they are encoded, with the path and the remedy."""

import enum
import uuid
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest

from resurgam.core.codec import Codec
from resurgam.core.errors import SerializationError


class Colour(enum.Enum):
    RED = "red"


class Animal(msgspec.Struct):
    name: str


class Dog(Animal):
    breed: str = ""


@dataclass
class Person:
    name: str


@dataclass
class Author(Person):
    books: int = 0


@dataclass
class House:
    owner: Person
    others: list[Person] = field(default_factory=list)
    more: Any = None


class Options(TypedDict, total=False):
    port: int


class Pair(NamedTuple):
    left: Person
    right: int = 0


class Base(pydantic.BaseModel):
    a: int = 1


class Sub(Base):
    b: int = 2


class Holder(pydantic.BaseModel):
    base: Base


class Secret(pydantic.BaseModel):
    user: str = ""
    token: str = pydantic.Field(default="", exclude=True)


class Private(pydantic.BaseModel):
    _hidden: int = pydantic.PrivateAttr(default=1)


class Masked(pydantic.BaseModel):
    password: pydantic.SecretStr


class Computed(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    a: int

    @pydantic.computed_field
    @property
    def twice(self) -> int:
        return self.a * 2


def hidden() -> Private:
    model = Private()
    model._hidden = 5
    return model


CLASSES = "; annotate Author, or a union of the classes it may be"


@pytest.mark.parametrize(
    ("hint", "value", "path", "reason"),
    [
        (Person, Author("a", 1), "", f"an object of Author comes back as one of Person{CLASSES}"),
        (Animal, Dog("rex", "lab"), "", "an object of Dog comes back as one of Animal"),
        (House, House(Author("a")), ".owner", "comes back as one of Person"),
        (House, House(Person("a"), [Person("b"), Author("c")]), ".others[1]", "comes back as one of Person"),
        (dict[str, Person | None], {"x": None, "y": Author("a")}, "['y']", "comes back as one of Person"),
        (Pair, Pair(Author("a")), ".left", "comes back as one of Person"),
        (tuple[Person, int], (Author("a"), 1), "[0]", "comes back as one of Person"),
        (Person, Base(), "", "Object missing required field name"),
        (Base, Sub(b=7), "", "an object of Sub comes back as one of Base"),
        (Holder, Holder(base=Sub(b=7)), ".base", "an object of Sub comes back as one of Base"),
        (Secret, Secret(user="u", token="t"), ".token", "the field has exclude=True, so pydantic does not write it"),
        (list[Secret], [Secret(token="t")], "[0].token", "exclude=True"),
        (Private, hidden(), "", "its private attributes are not written by pydantic"),
        (Masked, Masked(password="p"), ".password", "comes back as SecretStr"),
        (dict[int | str, int], {1: 1, "1": 2}, "", "2 keys 1 come back"),
        (dict[int, int], {1: 1, "1": 2}, "", "2 keys 1 come back"),
        (dict[int | str, int], {1: 1}, "", "the key 1 comes back as '1'"),
        (Options, {"port": 1, "prot": 2}, "", "the key 'prot' is not one of the type"),
        (Person, {"name": "a", "nick": "b"}, "", "the key 'nick' is no field of Person"),
        (float, 2**53 + 1, "", "9007199254740993 comes back as 9007199254740992.0"),
        (str, uuid.UUID(int=1), "", "comes back as '00000000-0000-0000-0000-000000000001'; pass a value of the type"),
        (list[str], ["a", Colour.RED], "[1]", "<Colour.RED: 'red'> comes back as 'red'"),
        (str, Path("x"), "", "comes back as 'x'"),
    ],
)
def test_a_value_that_does_not_round_trip_is_refused(hint, value, path, reason):
    with pytest.raises(SerializationError) as caught:
        Codec(hint).check(value, "order")
    assert caught.value.path == f"order{path}"
    assert reason in caught.value.reason


@pytest.mark.parametrize(
    ("hint", "value", "back"),
    [
        (float, 1, 1.0),
        (list[int], (1, 2), [1, 2]),
        (tuple[int, ...], [1, 2], (1, 2)),
        (list[int], {2, 1}, [1, 2]),
        (set[int], [1, 1], {1}),
        (dict[int, str], {"1": "a"}, {1: "a"}),
        (Decimal, 1.5, Decimal("1.5")),
        (uuid.UUID, str(uuid.UUID(int=1)), uuid.UUID(int=1)),
        (Colour, "red", Colour.RED),
        (House, {"owner": {"name": "a"}}, House(Person("a"))),
        (Pair, [{"name": "a"}, 1], Pair(Person("a"), 1)),
        (Holder, {"base": {"a": 5}}, Holder(base=Base(a=5))),
        (Any, (1, Person("a"), {1: Colour.RED}), [1, {"name": "a"}, {"1": "red"}]),
        (House, House(Person("a"), more=Author("b", 2)), House(Person("a"), more={"name": "b", "books": 2})),
        (Computed, Computed(a=2), Computed(a=2)),
        (Secret, Secret(user="u"), Secret(user="u")),
        (Private, Private(), Private()),
    ],
)
def test_a_value_in_the_json_form_of_its_hint_is_accepted(hint, value, back):
    codec: Codec[Any] = Codec(hint)
    found = codec.decode(codec.check(value))
    assert (type(found), found) == (type(back), back)


def test_a_decimal_nan_round_trips():
    assert str(Codec(Decimal).decode(Codec(Decimal).check(Decimal("NaN")))) == "NaN"
