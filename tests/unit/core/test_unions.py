"""Unions of classes: values are encoded with the name of their class, and decoded by it."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Generic, NewType, TypeVar
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest

from resurgam.core.codec import Codec, codec_for
from resurgam.core.errors import SerializationError
from resurgam.core.schema import mismatch, schema_of

T = TypeVar("T")
SUMMER = datetime(2026, 3, 29, 3, 0, tzinfo=ZoneInfo("Europe/Berlin"))


@dataclass
class Cash:
    amount: int


@dataclass(frozen=True)
class Card:
    number: str
    tags: frozenset[str] = frozenset()


@dataclass
class Cheque:
    amount: int
    due: datetime | None = None


class Voucher(msgspec.Struct):
    code: str


class Gift(pydantic.BaseModel):
    sender: str = pydantic.Field(alias="From")


@dataclass
class Payment:
    by: Cash | Card
    note: str = ""
    tries: list[Cash | Card | None] = field(default_factory=list)
    count: int = field(default=0, init=False)


class Order(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    paid_by: Payment | None = None


@dataclass
class Leaf:
    value: int


@dataclass
class Node:
    children: list["Leaf | Node"]


@dataclass
class Box(Generic[T]):
    item: T


Means = NewType("Means", Cash)


@pytest.mark.parametrize(
    ("hint", "value", "text"),
    [
        (Cash | Card, Cash(5), '{"$type":"Cash","amount":5}'),
        (Cash | Card | None, None, "null"),
        (Cash | Card | int, 5, "5"),
        (Cash | Card | list[int], [5], "[5]"),
        (
            list[Cash | Cheque],
            [Cash(1), Cheque(2)],
            '[{"$type":"Cash","amount":1},{"$type":"Cheque","amount":2,"due":null}]',
        ),
        (dict[str, Cash | Card], {"a": Card("1")}, None),
        (tuple[Cash | Card, ...], (Cash(1), Card("2", frozenset("ab"))), None),
        (Annotated[Cash | Card, "means"], Cash(5), None),
        (Cash | Cheque, Cheque(1, SUMMER), None),
        (Cash | Voucher, Voucher("x"), '{"$type":"Voucher","code":"x"}'),
        (Cash | Gift, Gift(From="Ann"), '{"$type":"Gift","From":"Ann"}'),
        (Gift | None, Gift(From="Ann"), '{"From":"Ann"}'),
        (Gift | str, "Ann", '"Ann"'),
        (set[Card | Leaf], {Card("1"), Card("2")}, None),
        (Payment, Payment(Cash(1)), '{"by":{"$type":"Cash","amount":1},"note":"","tries":[]}'),
        (Payment, Payment(Card("1"), "x", [None, Cash(2)]), None),
        (Order, Order(Payment(Cash(1))), '{"paidBy":{"by":{"$type":"Cash","amount":1},"note":"","tries":[]}}'),
        (Order, Order(), '{"paidBy":null}'),
        (Leaf | Node, Node([Leaf(1), Node([Leaf(2)])]), None),
        (Node, Node([Leaf(1), Node([])]), None),
        (Box[Cash | Card], Box(Card("1")), '{"item":{"$type":"Card","number":"1","tags":[]}}'),
        (tuple[Box[int], Box[Cash | Card]], (Box(1), Box(Cash(1))), None),
    ],
)
def test_a_union_of_classes_round_trips(hint, value, text):
    codec: Codec[Any] = Codec(hint)
    data = codec.check(value)
    assert text is None or bytes(data).decode() == text
    back = codec.decode(data)
    assert (type(back), back) == (type(value), value)


def test_a_field_that_init_does_not_accept_is_kept():
    payment = Payment(Cash(1))
    payment.count = 7
    assert codec_for(Payment).decode(codec_for(Payment).check(payment)).count == 7


@pytest.mark.parametrize(
    ("hint", "data", "reason"),
    [
        (Cash | Card, '{"$type":"Coin","amount":1}', r"\$type must be one of 'Cash', 'Card', got 'Coin'"),
        (Cash | Card, '{"$type":"Cash","amount":"x"}', "Expected `?int`?, got `?str"),
        (Cash | Cheque, '{"amount":1}', 'fits Cash and Cheque; name its class: {"\\$type": "Cash", ...}'),
        (Cash | Card, "{}", "fits none of Cash, Card"),
        (Cash | Card, "5", r"expected an object of Cash \| Card, got int"),
        (Cash | Card, "null", r"expected an object of Cash \| Card, got NoneType"),
        (list[Payment], '[{"by":{"$type":"Coin"}}]', r"\$type must be one of"),
    ],
)
def test_an_unknown_class_name_is_refused(hint, data, reason):
    with pytest.raises(SerializationError, match=reason):
        Codec(hint).decode(data.encode())


def test_an_unnamed_value_is_the_only_class_that_it_fits():
    written = codec_for(Any).encode(Card("42"))
    assert codec_for(Cash | Card).decode(written) == Card("42")


def test_two_classes_of_one_name_are_refused():
    other = dataclass(type("Cash", (), {"__annotations__": {"x": int}}))
    with pytest.raises(SerializationError, match="must have different names"):
        Codec(Cash | other)


@pytest.mark.parametrize(
    ("hint", "value", "fits"),
    [
        (Cash | Card, Cash(1), True),
        (Cash | Card, {"$type": "Card", "number": "1"}, True),
        (Cash | Card, {"$type": "Coin", "number": "1"}, False),
        (Cash | Card, {"number": 1}, False),
        (Cash | Cheque, {"amount": 1}, False),
        (Cash | Cheque | int, 5, True),
        (list[Payment], [{"by": {"amount": 1}}], True),
        (list[Payment], [{"by": {"amount": "x"}}], False),
        (Node, {"children": [{"value": 1}, {"children": []}]}, True),
        (Node, {"children": [{"value": 1}, {"children": [{}]}]}, False),
    ],
)
def test_a_signal_is_checked_against_the_union(hint, value, fits):
    written = codec_for(Any).encode(value)
    assert (mismatch(schema_of(hint), written) is None) == fits
    if fits:
        codec_for(hint).decode(written)


@pytest.mark.parametrize("hint", [Cash | Card | dict[str, int], Cash | Card | dict])
def test_a_union_of_classes_and_a_mapping_is_refused(hint):
    with pytest.raises(SerializationError, match="wrap the mapping in a class"):
        Codec(hint)
