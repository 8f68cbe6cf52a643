"""Pydantic models as signal types: refused at the sender only if the model refuses it, with and without the class."""

import enum
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from resurgam.core.codec import codec_for
from resurgam.core.errors import SerializationError
from resurgam.core.schema import mismatch, schema_of

ANY = codec_for(Any)


class Word(enum.Enum):
    YES = "yes"
    NO = "no"


class Number(enum.Enum):
    ONE = 1


class Answer(pydantic.BaseModel):
    response: Literal["confirm", "deny"]


class Line(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    sku: str = pydantic.Field(alias="SKU")
    count: int = 1
    word: Word = Word.YES


class Order(pydantic.BaseModel):
    lines: list[Line]
    note: str | None = None
    number: Number = Number.ONE
    paid: bool = False
    price: float | Decimal = 0.0
    due: date | None = None
    id: UUID | None = None
    tags: set[str] = set()
    parent: "Order | None" = None


class Lenient(pydantic.BaseModel):
    answer: Answer

    @pydantic.field_validator("answer", mode="before")
    @classmethod
    def read(cls, value: object) -> object:
        return {"response": value} if isinstance(value, str) else value


class Coercing(pydantic.BaseModel):
    text: Annotated[str, pydantic.BeforeValidator(str)]


class Root(pydantic.RootModel[list[int]]):
    pass


MODELS: list[Any] = [Answer, Line, Order, Lenient, Coercing, Root, list[Answer], dict[str, Order]]

SCALARS = st.sampled_from([None, True, 0, 1, 2.5, "", "1", "yes", "confirm", "2026-01-01", "true", "perhaps"])
NAMES = st.sampled_from(
    [
        *("response", "SKU", "sku", "count", "word", "lines", "note", "number", "paid", "price", "due", "id", "tags"),
        *("parent", "answer", "text", "other"),
    ]
)
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=8
)
LINES = st.dictionaries(st.sampled_from(["SKU", "count", "word"]), SCALARS, max_size=3)
ORDERS = st.fixed_dictionaries({"lines": st.lists(LINES | TREES, max_size=2)}, optional={"note": TREES, "paid": TREES})
ANSWERS = st.fixed_dictionaries({"response": TREES})
VALUES = (
    TREES | LINES | ORDERS | ANSWERS | st.lists(ANSWERS, max_size=2) | st.dictionaries(st.text(), ORDERS, max_size=2)
)


def taken(hint: Any, written: Raw) -> bool:
    try:
        codec_for(hint).decode(written)
    except SerializationError:
        return False
    return True


def elsewhere(hint: Any) -> Raw:
    """Return the stored schema as seen by a process that has not imported the models."""
    return Raw(bytes(schema_of(hint)).replace(__name__.encode(), b"not_imported_here"))


@settings(max_examples=150, deadline=None)
@given(value=VALUES)
@pytest.mark.parametrize("hint", MODELS, ids=str)
def test_with_its_class_a_model_accepts_what_its_codec_accepts(hint, value):
    written = ANY.encode(value)
    assert (mismatch(schema_of(hint), written) is None) == taken(hint, written)


@settings(max_examples=150, deadline=None)
@given(value=VALUES)
@pytest.mark.parametrize("hint", MODELS, ids=str)
def test_without_its_class_the_schema_refuses_nothing_the_model_accepts(hint, value):
    written = ANY.encode(value)
    assert mismatch(elsewhere(hint), written) is None or not taken(hint, written)


@pytest.mark.parametrize(
    ("hint", "value", "path"),
    [
        (Answer, {"response": "perhaps"}, ".response"),
        (Answer, {}, ".response"),
        (Answer, "confirm", ""),
        (list[Answer], [{"response": "deny"}, {"response": 5}], "[1].response"),
        (Order, {"lines": [{"SKU": "a"}, {"sku": "b"}]}, ".lines[1].SKU"),
        (Order, {"lines": [{"SKU": "a", "colour": "red"}]}, ".lines[0].colour"),
        (Order, {"lines": [], "note": []}, ".note"),
    ],
)
def test_a_mismatch_is_reported_with_its_path(hint, value, path):
    written = ANY.encode(value)
    for schema in (schema_of(hint), elsewhere(hint)):
        found = mismatch(schema, written)
        assert found is not None
        assert found[0].startswith(path)  # pydantic names the branch of a union too


def test_another_version_of_the_class_is_not_used():
    schema = msgspec.json.decode(schema_of(Answer))
    assert mismatch(Raw(msgspec.json.encode(schema)), ANY.encode({"response": "later"})) is not None
    older = Raw(msgspec.json.encode({**schema, "digest": "another", "loose": {"type": "object"}}))
    assert mismatch(older, ANY.encode({"response": "later"})) is None
