"""The arguments of a call: bound, checked, encoded and decoded by the annotations of a function."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Never, NoReturn
from zoneinfo import ZoneInfo

import pytest
from msgspec import Raw

from resurgam.core.errors import DefinitionError, SerializationError
from resurgam.runtime.definitions.signature import Signature, result_codec

BERLIN = ZoneInfo("Europe/Berlin")


@dataclass
class Line:
    sku: str
    quantity: int = 1


@dataclass
class Order:
    lines: list[Line]
    due: datetime | None = None


def charge(order: Order, amount: int = 5) -> str: ...


def many(first: int, *rest: str) -> None: ...


def mixed(first: int, *rest: str, flag: bool = False, **more: int) -> None: ...


def by_keyword(*, order: Order, note: str = "") -> None: ...


def gaps(a: int = 1, b: int = 2, c: int = 3) -> int: ...


def nothing(): ...


def untyped(a, b=None): ...


async def flow(ctx, order: Order, times: int = 1) -> list[int]: ...


def signature_of(function, **options) -> Signature:
    return Signature(function, f"activity {function.__name__!r}", **options)


ORDER = Order([Line("a"), Line("b", 2)])
ORDER_JSON = '{"lines":[{"sku":"a","quantity":1},{"sku":"b","quantity":2}],"due":null}'


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "text", "expected"),
    [
        (charge, (ORDER,), {}, f"[{ORDER_JSON}]", ((ORDER,), {})),
        (charge, (ORDER, 7), {}, f"[{ORDER_JSON},7]", ((ORDER, 7), {})),
        (charge, (), {"amount": 7, "order": ORDER}, f"[{ORDER_JSON},7]", ((ORDER, 7), {})),
        (many, (1,), {}, "[1]", ((1,), {})),
        (many, (1, "a", "b", "c"), {}, '[1,"a","b","c"]', ((1, "a", "b", "c"), {})),
        (nothing, (), {}, "[]", ((), {})),
        (untyped, ({"a": [1]},), {}, '[{"a":[1]}]', (({"a": [1]},), {})),
        (mixed, (1,), {}, "[1]", ((1,), {})),
        (mixed, (1, "a", "b"), {}, '[1,"a","b"]', ((1, "a", "b"), {})),
        (
            mixed,
            (1,),
            {"flag": True, "x": 3},
            '{"args":[1],"kwargs":{"flag":true,"x":3}}',
            ((1,), {"flag": True, "x": 3}),
        ),
        (by_keyword, (), {"order": ORDER}, f'{{"args":[],"kwargs":{{"order":{ORDER_JSON}}}}}', ((), {"order": ORDER})),
    ],
)
def test_arguments_round_trip(function, args, kwargs, text, expected):
    signature = signature_of(function)
    data = signature.encode(args, kwargs)
    assert bytes(data).decode() == text
    positional, named = signature.decode(data)
    assert (tuple(positional), dict(named)) == expected


@pytest.mark.parametrize("kwargs", [{"b": 5}, {"c": 5}, {"a": 1, "c": 5}])
def test_omitted_arguments_keep_their_defaults(kwargs):
    signature = signature_of(gaps)
    args, named = signature.decode(signature.encode((), kwargs))
    assert {**dict(zip("abc", args, strict=False)), **named} == kwargs


def test_a_zone_in_an_argument_is_kept():
    signature = signature_of(charge)
    order = Order([], datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN))
    args, _ = signature.decode(signature.encode((order,)))
    assert repr(args) == repr((order,))


def test_the_context_is_not_among_the_arguments():
    signature = Signature(flow, "workflow 'flow'", skip=1)
    assert signature.parameters == {"order", "times"}
    data = signature.encode((ORDER,), {"times": 2})
    assert bytes(data).decode() == f"[{ORDER_JSON},2]"
    assert signature.decode(data) == ((ORDER, 2), {})
    assert signature.result.decode(b"[1]") == [1]


@pytest.mark.parametrize(
    ("args", "kwargs", "reason"),
    [
        ((), {}, "missing a required argument: 'order'"),
        ((ORDER, 1, 2), {}, "too many positional arguments"),
        ((ORDER,), {"colour": 1}, "got an unexpected keyword argument 'colour'"),
        ((ORDER,), {"order": ORDER}, "multiple values for argument 'order'"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_where_it_is_made(args, kwargs, reason):
    with pytest.raises(DefinitionError) as caught:
        signature_of(charge).encode(args, kwargs)
    assert (
        str(caught.value) == f"activity 'charge': {reason}; its signature is (order: {__name__}.Order, amount: int = 5)"
    )


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "text"),
    [
        (
            charge,
            (Order([Line("a"), Line("b"), Line("c", "many")]),),
            {},
            "activity 'charge', argument 'order'.lines[2].quantity: Expected int, got str",
        ),
        (charge, (ORDER, "5"), {}, "activity 'charge', argument 'amount': Expected int, got str"),
        (charge, (), {"order": ORDER, "amount": "5"}, "activity 'charge', argument 'amount': Expected int, got str"),
        (charge, (5,), {}, "activity 'charge', argument 'order': Expected object, got int"),
        (
            charge,
            (Order([Line(object())]),),
            {},
            "activity 'charge', argument 'order'.lines[0].sku: values of type object cannot be written",
        ),
        (
            charge,
            (Order([], datetime(2026, 1, 1)),),  # noqa: DTZ001 -- it is to be refused
            {},
            "activity 'charge', argument 'order'.due: 2026-01-01T00:00:00 has no time zone; use aware datetimes",
        ),
        (many, (1, "a", 2), {}, "activity 'many', argument 'rest': Expected str, got int"),
        (mixed, ("x",), {"flag": True}, "activity 'mixed', argument 'first': Expected int, got str"),
        (mixed, (1,), {"flag": "no"}, "activity 'mixed', argument 'flag': Expected bool, got str"),
        (mixed, (1,), {"x": "no"}, "activity 'mixed', argument 'x': Expected int, got str"),
        (mixed, (1,), {"x": object()}, "activity 'mixed', argument 'x': values of type object cannot be written"),
        (
            mixed,
            (object(),),
            {"x": 1},
            "activity 'mixed', argument 'first': values of type object cannot be written",
        ),
        (
            by_keyword,
            (),
            {"order": Order([Line(5)])},
            "activity 'by_keyword', argument 'order'.lines[0].sku: Expected str, got int",
        ),
    ],
)
def test_an_argument_of_the_wrong_type_is_named_with_the_path_into_it(function, args, kwargs, text):
    with pytest.raises(SerializationError) as caught:
        signature_of(function).encode(args, kwargs)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "missing a required argument: 'order'"),
        (f"[{ORDER_JSON},1,2]", "too many positional arguments"),
        (f'{{"args":[{ORDER_JSON}],"kwargs":{{"colour":1}}}}', "got an unexpected keyword argument 'colour'"),
    ],
)
def test_arguments_of_another_version_that_do_not_fit_are_refused(text, reason):
    with pytest.raises(DefinitionError) as caught:
        signature_of(charge).decode(Raw(text.encode()))
    assert str(caught.value) == f"activity 'charge' was recorded with arguments that it does not accept: {reason}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[{"lines":[]}]', "activity 'charge' reads it with the default it has now"),
        ('[{"lines":[],"coupon":"X"}]', "a field that is no longer there is passed over"),
    ],
)
def test_arguments_of_another_version_that_fit_are_read(text, expected):
    assert signature_of(charge).decode(Raw(text.encode())) == ((Order([]),), {}), expected


def test_arguments_of_another_version_with_other_types_are_refused_with_the_path():
    with pytest.raises(SerializationError) as caught:
        signature_of(charge).decode(Raw(b'[{"lines":[{"sku":5}]}]'))
    assert str(caught.value) == "activity 'charge', argument 'order'.lines[0].sku: Expected str, got int"


def test_a_parameter_without_a_codec_is_named():
    def bad(callback: Callable[[], int]) -> None: ...

    with pytest.raises(SerializationError) as caught:
        signature_of(bad).check()
    assert str(caught.value).startswith(
        "activity 'bad', parameter 'callback' (collections.abc.Callable[[], int]): values of type Callable"
    )


def test_a_result_without_a_codec_is_named():
    def bad() -> Callable[[], int]: ...

    with pytest.raises(SerializationError, match=r"activity 'bad', the result \(collections"):
        signature_of(bad).check()


def test_an_annotation_that_cannot_be_resolved_is_named_at_first_use():
    def later(order: "DefinedNowhere") -> None: ...  # noqa: F821

    signature = signature_of(later)
    with pytest.raises(DefinitionError) as caught:
        signature.encode((1,))
    assert str(caught.value) == (
        "activity 'later': annotation 'DefinedNowhere' cannot be resolved; "
        "define the type at module level, before the function is first used"
    )


def test_an_annotation_may_be_defined_after_the_function(monkeypatch):
    def later(order: "DefinedLater") -> None: ...  # noqa: F821

    signature = signature_of(later)
    with pytest.raises(DefinitionError):
        signature.check()
    monkeypatch.setitem(globals(), "DefinedLater", int)
    signature.check()
    assert signature.decode(signature.encode((5,))) == ((5,), {})


def test_without_annotations_any_json_passes():
    signature = signature_of(untyped)
    signature.check()
    assert signature.result.decode(b'{"a":[1]}') == {"a": [1]}


def returns_order() -> Order: ...


def returns_unknown() -> "DefinedNowhere": ...  # noqa: F821


@pytest.mark.parametrize(
    ("function", "data", "expected"),
    [
        (returns_order, b'{"lines":[]}', Order([])),
        (nothing, b'{"lines":[]}', {"lines": []}),
        (returns_unknown, b'{"lines":[]}', {"lines": []}),
        (len, b"5", 5),
        (object(), b"5", 5),
    ],
)
def test_the_result_codec_follows_the_annotation(function: Any, data, expected):
    assert result_codec(function).decode(data) == expected


async def test_a_function_may_be_annotated_never_to_return():
    async def ends() -> NoReturn:
        raise ValueError

    async def ends_too() -> Never:
        raise ValueError

    for function in (ends, ends_too):
        signature = signature_of(function)
        signature.check()
        assert signature.result.decode(b"null") is None
        with pytest.raises(SerializationError, match="Expected null, got int"):
            signature.result.check(5)
        assert result_codec(function).decode(b"null") is None


def test_the_codecs_of_a_function_with_any_keywords_are_bounded():
    signature = signature_of(mixed)
    for number in range(300):
        written = signature.encode((1,), {f"user_{number}": number})
        assert signature.decode(written) == ((1,), {f"user_{number}": number})
    for number in range(300):
        signature.encode((1, *["x"] * number))
    assert len(signature._arguments) <= 64
