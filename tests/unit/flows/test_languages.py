"""Expressions in CEL, Lua and as paths: what they see, what they return, and which errors they have."""

from collections.abc import Mapping
from typing import Any

import pytest

from resurgam.flows.errors import ExpressionFailed
from resurgam.flows.expressions import Expressions, compiled
from resurgam.flows.judge import NOTHING
from resurgam.flows.model import Expression, Language


def evaluate(language: Language, script: str, **values: Any) -> Any:
    return compiled(Expression(language=language, script=script), tuple(values)).evaluate(values)


def refused(language: Language, script: str, **values: Any) -> str:
    with pytest.raises(ExpressionFailed) as raised:
        evaluate(language, script, **values)
    return str(raised.value)


VALUES = [
    None,
    True,
    False,
    0,
    -1,
    2**63 - 1,
    -(2**63),
    1.5,
    1e300,
    "",
    "text ✓ \n \\u0000",
    [],
    [1, "a", None, [2]],
    [None],
    {"a": 1, "b": [{"c": "d"}]},
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
@pytest.mark.parametrize(("language", "script"), [("cel", "value"), ("lua", "value"), ("jpath", "$")])
def test_a_value_goes_in_and_comes_out(language: Language, script: str, value: object) -> None:
    found = evaluate(language, script, value=value)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("script", "values", "result"),
    [
        ("a + b * 2", {"a": 1, "b": 2}, 5),
        ("name.startsWith('x') || size(name) > 2", {"name": "abc"}, True),
        ("items.exists(one, one.price > 10)", {"items": [{"price": 5}, {"price": 11}]}, True),
        ("items.map(one, one.price)", {"items": [{"price": 5}, {"price": 11}]}, [5, 11]),
        ("{'total': a, 'list': [a, a]}", {"a": 1}, {"total": 1, "list": [1, 1]}),
        ("a == null", {"a": None}, True),
        ("has(o.x) ? o.x : 0", {"o": {}}, 0),
        ("'a' + 'b'", {}, "ab"),
    ],
)
def test_cel(script: str, values: Mapping[str, Any], result: object) -> None:
    assert evaluate("cel", script, **values) == result


@pytest.mark.parametrize(
    ("script", "values", "message"),
    [
        ("a / b", {"a": 1, "b": 0}, "divide by zero"),
        ("o.x", {"o": {}}, "x"),
        ("a + b", {"a": 1, "b": "x"}, "no such overload|No matching overloads"),
        ("1.0 / 0.0", {}, "the result has inf, which is no JSON number"),
        ("0.0 / 0.0", {}, "the result has nan, which is no JSON number"),
        ("9223372036854775807 + a", {"a": 1}, "overflow"),
        ("duration('1s')", {}, "no JSON value; convert it with string()"),
        ("timestamp('2020-01-01T00:00:00Z')", {}, "no JSON value; convert it with string()"),
        ("b'abc'", {}, "no JSON value; convert it with string()"),
        ("{1: 'a'}", {}, "no JSON value; convert it with string()"),
        ("a == 1", {"a": 2**64}, "out of range"),
        ("a == 'b'", {"a": [{"x": "b\x00c"}]}, "the character NUL"),
    ],
)
def test_cel_fails_with_a_reason(script: str, values: Mapping[str, Any], message: str) -> None:
    said = refused("cel", script, **values)
    assert any(one in said for one in message.split("|")), said


@pytest.mark.parametrize(
    ("script", "values", "result"),
    [
        ("a + b", {"a": 1, "b": 2}, 3),
        ("return a + b", {"a": 1, "b": 2}, 3),
        ("local sum = 0 for _, one in ipairs(list) do sum = sum + one end return sum", {"list": [1, 2, 3]}, 6),
        ("{total = a, list = {a, a}}", {"a": 1}, {"total": 1, "list": [1, 1]}),
        ("o.x", {"o": {}}, None),
        ("a, 2", {"a": 1}, 1),
        ("return", {}, None),
        ("list[2] == null", {"list": [1, None]}, True),
        ("#list", {"list": [1, None, 3]}, 3),
        ("o.x == nil", {"o": {"x": None}}, True),
        ("7 // 2", {}, 3),
        ("1 / 2", {}, 0.5),
        ("{}", {}, {}),
        ("{null, null}", {}, [None, None]),
        ("('a,b'):gsub(',', ';')", {}, "a;b"),
        ("('  a b '):match('^%s*(.-)%s*$')", {}, "a b"),
        ("string.format('%05.1f %s', 3.14159, {})", {}, "003.1 table"),
        ("tostring({})", {}, "table"),
        ("string.rep('ab', 3, '-')", {}, "ab-ab-ab"),
        ("('x'):rep(0)", {}, ""),
        ("('x'):rep(-1)", {}, ""),
        ("table.concat(table.move({1, 2, 3}, 1, 3, 2))", {}, "1123"),
        ("table.concat(table.move({1, 2, 3}, 2, 3, 1))", {}, "233"),
        ("utf8.len('✓✓')", {}, 2),
        ("select(2, 'a', 'b')", {}, "b"),
        ("math.maxinteger", {}, 2**63 - 1),
    ],
)
def test_lua(script: str, values: Mapping[str, Any], result: object) -> None:
    assert evaluate("lua", script, **values) == result


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 100])
def test_lua_sorts_and_keeps_the_order_of_equals(count: int) -> None:
    pairs = [{"key": (number * 37) % 5, "at": number} for number in range(count)]
    found = evaluate("lua", "table.sort(list, function(a, b) return a.key < b.key end) return list", list=pairs)
    assert found == sorted(pairs, key=lambda one: one["key"])
    numbers = [one["key"] for one in pairs]
    assert evaluate("lua", "table.sort(list) return list", list=numbers) == sorted(numbers)


def test_parameters_of_lua_are_in_the_order_of_their_names() -> None:
    script = compiled(Expression(language="lua", script="{b, a}"), ("b", "a"))
    assert script.evaluate({"a": 1, "b": 2}) == [2, 1]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("error('no stock')", "no stock"),
        ("error({code = 1})", "an error without a text"),
        ("error()", "an error without a text"),
        ("nothing.field", "nothing"),
        ("1 .. {}", "concatenate"),
        ("0 / 0", "nan, which is no JSON number"),
        ("1 / 0", "inf, which is no JSON number"),
        ("function() end", "a function, which is no JSON value"),
        ("{[true] = 1}", "keys that are no text"),
        ("{[1.5] = 1}", "keys that are no text"),
        ("{1, 2, x = 3}", "keys that are no text"),
        ("{nil, 2}", "has a hole"),
        ("'\\xff'", "no UTF-8"),
        ("{['\\xff'] = 1}", "no UTF-8"),
        ("utf8.char(0xD800)", "no UTF-8"),
    ],
)
def test_lua_fails_with_a_reason(script: str, message: str) -> None:
    assert message in refused("lua", script)


@pytest.mark.parametrize("change", ["list[2] = nil", "list.x = 1", "list[0] = 1", "list[9] = 1"])
def test_a_list_of_lua_must_stay_one(change: str) -> None:
    assert "has a hole, or keys that are no numbers" in refused("lua", f"{change} return list", list=[1, 2, 3])


def test_lua_has_no_integers_beyond_64_bits() -> None:
    assert "more than 64 bits" in refused("lua", "a", a=[{"b": 2**63}])


@pytest.mark.parametrize(("language", "script"), [("lua", "value"), ("jpath", "$")])
def test_a_text_may_have_any_character(language: Language, script: str) -> None:
    assert evaluate(language, script, value="a\x00b") == "a\x00b"


def test_lua_changes_a_copy() -> None:
    given = {"list": [1, 2], "deep": {"x": 1}}
    evaluate("lua", "o.list[1] = 9 o.deep.x = 9 o.new = 9", o=given)
    assert given == {"list": [1, 2], "deep": {"x": 1}}


DOCUMENT = {
    "order": {"id": 7, "items": [{"price": 5, "tags": ["a"]}, {"price": 11}, {"price": 20, "id": 8}]},
    "odd name": True,
    "none": None,
}


@pytest.mark.parametrize(
    ("script", "result"),
    [
        ("$.order.id", 7),
        ("$.order.items[0].price", 5),
        ("$.order.items[-1].price", 20),
        ("$.order.items[9]", NOTHING),
        ("$.order.items[*].price", [5, 11, 20]),
        ("$.order.items[0:2].price", [5, 11]),
        ("$.order.items[::-1].price", [20, 11, 5]),
        ("$.order.items[ 0 : 2 : 2 ].price", 5),
        ("$..id", [7, 8]),
        ("$..tags[*]", "a"),
        ("$..[0]", [{"price": 5, "tags": ["a"]}, "a"]),
        ("$['odd name']", True),
        ('$["odd name"]', True),
        ("$.none", None),
        ("$.missing", NOTHING),
        ("$.order.*.x", NOTHING),
        ("$.order.items[?(@.price > 10)].price", [11, 20]),
        ("$.order.items[?@.price <= 5].price", 5),
        ("$.order.items[?(@.id)].price", 20),
        ("$.order.items[?(@.price == 11)].price", 11),
        ("$.order.items[?(@.price != 11)].price", [5, 20]),
        ("$.order.items[?(@.price > 'a')].price", NOTHING),
        ("$.order[?(@ == 7)]", 7),
        ("$[?(@ == 1)]", NOTHING),
        ("$[?(@ == true)]", True),
        ("$ . order . id".replace(" . ", "."), 7),
        ("  $.order.id  ", 7),
    ],
)
def test_paths(script: str, result: object) -> None:
    assert evaluate("jpath", script, value=DOCUMENT) == result


@pytest.mark.parametrize(
    "script", ["order", "", "$.", "$..", "$[", "$[]", "$['a]", "$.a[?(b)]", "$[?(@ == x)]", "$[1:2:0]", "$[" + "9" * 20]
)
def test_what_is_no_path_is_refused(script: str) -> None:
    assert refused("jpath", script, value={})


JUDGE = Expressions()


def expression(language: Language, script: str) -> Expression:
    return Expression(language=language, script=script)


@pytest.mark.parametrize(
    ("language", "script", "inputs", "holds"),
    [
        ("cel", "a > 1", {"a": 2}, True),
        ("cel", "a > 1", {"a": 1}, False),
        ("cel", "b == null", {"a": 1}, True),
        ("lua", "a > 1", {"a": 2}, True),
        ("lua", "b", {"a": 2}, False),
        ("lua", "false", {}, False),
        ("lua", "0", {}, True),
        ("jpath", "$.a", {"a": None}, True),
        ("jpath", "$.b", {"a": 1}, False),
        ("jpath", "$[?(@ > 1)]", {"a": 1, "b": 2}, True),
    ],
)
def test_a_predicate_sees_all_inputs_and_those_without_a_value(
    language: Language, script: str, inputs: Mapping[str, Any], *, holds: bool
) -> None:
    assert JUDGE.holds(expression(language, script), inputs, ("a", "b")) is holds


def test_the_document_of_a_predicate_is_the_object_of_the_inputs_also_of_one() -> None:
    assert JUDGE.holds(expression("jpath", "$.value"), {"value": 1}, ("value",))
    assert JUDGE.matches(expression("jpath", "$.value"), {"value": 1})


def test_a_predicate_in_cel_is_true_or_false() -> None:
    with pytest.raises(ExpressionFailed, match="must be true or false, got int"):
        JUDGE.holds(expression("cel", "1"), {}, ())


@pytest.mark.parametrize(
    ("language", "script", "value", "mapped"),
    [
        ("cel", "value * 2", 2, 4),
        ("lua", "value * 2", 2, 4),
        ("lua", "{value = value, other = 1}", 2, 2),
        ("lua", "{only = value}", 2, 2),
        ("lua", "{a = 1, b = 2}", 2, {"a": 1, "b": 2}),
        ("lua", "{}", 2, None),
        ("lua", "{value, value}", 2, [2, 2]),
        ("jpath", "$.a", {"a": 1}, 1),
        ("jpath", "$.b", {"a": 1}, NOTHING),
    ],
)
def test_an_input_is_mapped(language: Language, script: str, value: Any, mapped: object) -> None:
    assert JUDGE.map_input(expression(language, script), value) == mapped


@pytest.mark.parametrize(("language", "script"), [("cel", "result.a + 1"), ("lua", "result.a + 1")])
def test_an_output_is_mapped_from_the_whole_result(language: Language, script: str) -> None:
    assert JUDGE.map_output(expression(language, script), {"a": 1, "b": 2}) == 2
