"""A hostile script is stopped at a limit, with an error that says which; it reaches nothing and leaves nothing behind."""

import threading
import time
from typing import Any

import pytest

from resurgam.flows.errors import ExpressionFailed
from resurgam.flows.expressions import Expressions, compiled
from resurgam.flows.languages import lua
from resurgam.flows.languages.limits import MAX_SCRIPT
from resurgam.flows.model import Expression, Language

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is stopped by time is stopped early."""
    monkeypatch.setattr(lua, "MAX_SECONDS", 0.5)


def evaluate(language: Language, script: str, **values: Any) -> Any:
    return compiled(Expression(language=language, script=script), tuple(values)).evaluate(values)


def refused(language: Language, script: str, **values: Any) -> str:
    with pytest.raises(ExpressionFailed) as raised:
        evaluate(language, script, **values)
    assert len(str(raised.value)) < 500
    return str(raised.value)


LOOPS = {
    "while": "while true do end",
    "repeat": "repeat until false",
    "goto": "::again:: goto again",
    "for": "for i = 1, math.huge do end",
    "tail calls": "local function f() return f() end return f()",
    "next over a growing table": "local t = {} for i = 1, 1e9 do t[i % 2] = i end",
    "a callback of gsub": "return (('a'):rep(1000):gsub('a', function() while true do end end))",
    "an iterator": "for _ in function() return 1 end do end",
    "a comparison that is never content": "table.sort({3, 2, 1}, function() while true do end end)",
    "a move of nothing": "table.move({}, 1, math.maxinteger - 1, 2)",
}


@pytest.mark.parametrize("what", LOOPS)
def test_a_loop_without_end_is_stopped(what: str) -> None:
    assert "the script exceeded" in refused("lua", LOOPS[what])


MEMORY = {
    "string.rep": "return #string.rep('x', 1e9)",
    "a method of text": "return #('x'):rep(1e9)",
    "doubling": "local s = 'x' while true do s = s .. s end",
    "a table": "local t = {} for i = 1, 1e7 do t[i] = i end",
    "tables in tables": "local t = {} while true do t = {t} end",
    "closures": "local f while true do local g = f f = function() return g end end",
    "gsub": "return #(('x'):rep(1e4):gsub('x', ('y'):rep(1e4)))",
    "concat": "local t = {} for i = 1, 1e5 do t[i] = ('x'):rep(1e3) end return #table.concat(t)",
    "format": "local s = ('x'):rep(9e6) return #string.format('%s%s%s%s', s, s, s, s)",
    "varargs": "local function f(...) return f(..., ...) end return f(1)",
}


@pytest.mark.parametrize("what", MEMORY)
def test_a_memory_bomb_is_stopped(what: str) -> None:
    said = refused("lua", MEMORY[what])
    assert "exceeded" in said or "stack overflow" in said, said


DEEP = {
    "recursion": "local function f() return 1 + f() end return f()",
    "recursion through gsub": "local function f(s) return (s:gsub('.', f)) end return f('x')",
    "recursion through sort": "local function f() table.sort({1, 2}, f) end f()",
    "unpack": "return select('#', table.unpack({}, 1, 1e8))",
    "bytes": "return select('#', ('x'):rep(1e7):byte(1, -1))",
    "recursive patterns": "return ('x'):rep(1000):find(('(x'):rep(20) .. (')'):rep(20))",
}


@pytest.mark.parametrize("what", DEEP)
def test_depth_is_bounded(what: str) -> None:
    evaluated = compiled(Expression(language="lua", script=DEEP[what]), ())
    try:
        evaluated.evaluate({})
    except ExpressionFailed as error:
        assert len(str(error)) < 500  # noqa: PT017 -- one of them may succeed


PATTERNS = {
    "repeated parts": "return ('a'):rep(3000):find(('a*'):rep(10) .. 'b')",
    "lazy parts": "return ('a'):rep(5000):find('^' .. ('.-'):rep(5) .. 'b')",
    "optional parts": "return ('a'):rep(40):find(('a?'):rep(40) .. ('a'):rep(41))",
    "brackets that do not close": "return ('('):rep(1e6):find('%b()')",
    "brackets after an escaped percent sign": "return ('('):rep(1e6):find('%%?%b()')",
    "references back": "return ('a'):rep(1e5):find('(a*)%1b')",
    "a long set": "return ('a'):rep(1e6):find('[' .. ('b'):rep(1e6) .. ']')",
    "a set that begins with its end": "return ('a'):rep(3000):find('[]a]*[]a]*[]a]*[]a]*b')",
    "a range in a set": "return ('a'):rep(3000):find('[a-z]*[%]a]*[a-z]*b')",
    "a long text": "return ('a'):rep(4e6):find(('a'):rep(2e6) .. 'b', 1, true)",
    "a long text that is no pattern": "return ('a'):rep(4e6):find(('a'):rep(2e6) .. 'b')",
    "gmatch": "for _ in ('a'):rep(1e4):gmatch(('.-'):rep(8) .. 'b') do end",
    "gmatch has no anchor": "for _ in ('a'):rep(1e5):gmatch('^a-a-b') do end",
    "gsub": "return ('a'):rep(1e4):gsub(('a*'):rep(4) .. 'b', '')",
    "match": "return string.match(('a'):rep(1e4), '.-.-.-.-b')",
    "a number as text": "return string.find(('1'):rep(1e6), ('1*'):rep(9) .. '2')",
    "many searches": "local s = ('a'):rep(9000) while true do s:find('a-b') end",
}


@pytest.mark.parametrize("what", PATTERNS)
def test_a_search_that_takes_too_long_is_refused_or_stopped(what: str) -> None:
    said = refused("lua", PATTERNS[what])
    assert "may take too long" in said or "the script exceeded" in said, said


@pytest.mark.parametrize(
    ("script", "result"),
    [
        ("return select(2, ('a b '):rep(20000):gsub('%s+', '_'))", 40_000),
        ("return #('x'):rep(1e6):gsub('x', 'yy')", 2_000_000),
        ("local n = 0 for word in ('one two '):rep(5000):gmatch('%a+') do n = n + 1 end return n", 10_000),
        ("return ('a=1'):match('^(%w+)=(%w*)$')", "a"),
        ("return ('2020-01-02'):gsub('(%d+)-(%d+)-(%d+)', '%3.%2.%1')", "02.01.2020"),
        ("return (('x'):rep(500) .. ' '):match('^%s*(.-)%s*$')", "x" * 500),
        ("return (('x'):rep(1e6) .. 'needle'):find('needle', 1, true)", 1_000_001),
        ("return string.rep('', 1e15)", ""),
        ("return string.rep('', 1e15, '')", ""),
    ],
)
def test_usual_work_on_texts_is_within_the_limits(script: str, result: object) -> None:
    assert evaluate("lua", script) == result


def test_long_comparisons_are_stopped_by_time() -> None:
    """Each is one step, and takes a millisecond."""
    script = """
        local a, b, t = ('x'):rep(4e6) .. 'a', ('x'):rep(4e6) .. 'b', {}
        for i = 1, 1e5 do t[i] = i % 2 == 0 and a or b end
        table.sort(t)
    """
    assert "exceeded 0.5 s" in refused("lua", script)


def test_the_work_of_other_threads_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has used much time since; the thread has not."""
    monkeypatch.setattr(lua.time, "thread_time", lambda: 1.0)
    monkeypatch.setattr(lua, "MAX_SECONDS", 0.0)
    monkeypatch.setattr(lua, "MAX_STEPS", 500_000)
    assert "exceeded 500000 steps" in refused("lua", "while true do local s = ('x'):rep(1000) end")


NOWHERE = [
    *("io", "os", "debug", "package", "require", "load", "loadstring", "loadfile", "dofile", "pcall", "xpcall"),
    *("coroutine", "getmetatable", "setmetatable", "rawget", "rawset", "rawequal", "rawlen", "collectgarbage"),
    *("print", "warn", "python", "_G", "unpack", "string.dump", "string.pack", "string.unpack", "math.random"),
    *("('').dump", "('').pack", "('').__index", "utf8.__index", "null.__index", "arg"),
]


@pytest.mark.parametrize("name", NOWHERE)
def test_nothing_leads_out(name: str) -> None:
    assert evaluate("lua", f"{name} == nil")


ESCAPES = {
    "the metatable of texts": "getmetatable('').__index.upper = function() return 'mine' end",
    "a field of a text": "('').upper = function() return 'mine' end",
    "a catch around the limit": "pcall(function() while true do end end)",
    "a thread with hooks of its own": "coroutine.wrap(function() while true do end end)()",
    "bytecode": "load(string.dump(function() end))",
    "compiled text": "load('return 1')()",
    "a module": "require('os').exit()",
    "an object of Python": "python.eval('1')",
    "an attribute of a value": "value.__class__.__mro__",
    "a method of a number": "(5).__class__.x",
    "a metatable by a field": "({}).__index.x",
    "a closing value": "local x <close> = setmetatable({}, {__close = function() end})",
    "an address": "error(('%p'):format({}))",
}


@pytest.mark.parametrize("what", ESCAPES)
def test_an_escape_fails(what: str) -> None:
    assert refused("lua", ESCAPES[what], value={"a": 1})


def test_a_script_leaves_nothing_for_the_next() -> None:
    evaluate("lua", "string.upper = function() return 'mine' end; leaked = 1; _ENV.tostring = nil; null.x = 1")
    found = evaluate("lua", "{('x'):upper(), string.upper('x'), tostring(1), tostring(leaked), null.x == nil}")
    assert found == ["X", "X", "1", "nil", True]


def test_a_stopped_script_leaves_nothing_for_the_next() -> None:
    for script in (LOOPS["while"], MEMORY["doubling"], DEEP["recursion"], "error('no')"):
        refused("lua", script)
        assert evaluate("lua", "1 + 1") == 2


def test_no_address_is_shown() -> None:
    for script in ("tostring({})", "string.format('%s %s', {}, print)", "tostring(tostring)", "('%10s'):format({})"):
        assert "0x" not in evaluate("lua", script)
    assert "0x" not in refused("lua", "error({})")


RESULTS = {
    "a cycle": "local t = {} t.t = t return t",
    "a longer cycle": "local a, b = {}, {} a[1], b[1] = b, a return a",
    "deep nesting": "local t = {} for i = 1, 200 do t = {t} end return t",
    "ever more of the same": "local t = {} for i = 1, 60 do t = {t, t} end return t",
    "many values": "local t = {} for i = 1, 300000 do t[i] = i end return t",
    "many names": "local t = {} for i = 1, 150000 do t['k' .. i] = i end return t",
    "one long text many times": "local s, t = ('x'):rep(9e6), {} for i = 1, 1000 do t[i] = s end return t",
    "long texts as names": "local t = {} for i = 1, 30 do t[('x'):rep(6e5) .. i] = 1 end return t",
    "not a number": "return {{0 / 0}}",
    "infinity": "return {x = -math.huge}",
    "an environment": "return _ENV",
    "a library": "return string",
    "a function": "return {function() end}",
}


@pytest.mark.parametrize("what", RESULTS)
def test_a_result_that_is_no_json_or_too_large_is_refused(what: str) -> None:
    assert "the result" in refused("lua", RESULTS[what])


def test_an_error_may_be_anything_and_is_short() -> None:
    for thrown in ("('x'):rep(1e7)", "{}", "nil", "'\\xff'", "print", "('\\n'):rep(1000)", "12", "true", "null"):
        assert refused("lua", f"error({thrown})")


def test_arguments_beyond_the_memory_of_lua_are_refused() -> None:
    assert "the arguments of a script take at most 16 MB" in refused("lua", "#a", a=list(range(2_000_000)))
    assert "the arguments of a script take at most 16 MB" in refused("lua", "#a", a=["x" * 1000] * 20_000)
    assert "the arguments of a script take at most 16 MB" in refused("lua", "#a", a="x" * 40_000_000)
    assert evaluate("lua", "#a", a="x" * 8_000_000) == 8_000_000
    assert "nested more than 100 levels deep" in refused("lua", "1", a=nested(500))


def test_memory_is_bounded_with_large_arguments_too() -> None:
    assert "MB of memory" in refused("lua", "local t = {} for i = 1, 1e6 do t[i] = a .. i end", a="x" * 8_000_000)


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


NUMBERS = list(range(5000))
TEXT = "x" * 1_000_000
EXPRESSIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "loops in loops": ("a.all(w, a.all(x, a.all(y, a.all(z, true))))", {"a": NUMBERS}),
    "a text in every element": ("a.map(x, b + b)", {"a": NUMBERS, "b": TEXT}),
    "a list in every element": ("a.map(x, a)", {"a": NUMBERS}),
    "a text of an outer loop in every element": ("b.map(x, a.map(y, x + x))", {"a": NUMBERS, "b": [TEXT]}),
    "a field of an outer loop": ("b.map(x, a.map(y, x.t + x.t))", {"a": NUMBERS, "b": [{"t": "x"}, {"t": TEXT}]}),
    "a result of an outer loop": ("b.map(x, x + x).map(x, a.map(y, x))", {"a": NUMBERS, "b": [TEXT]}),
    "a search in every element": ("a.all(x, b.matches('(x+x+)+y') || true)", {"a": NUMBERS, "b": TEXT}),
    "a comparison in every element": ("a.all(x, [b] == [b])", {"a": NUMBERS, "b": TEXT}),
    "a field in every element": ("a.all(x, bytes(b.c.d) != b'')", {"a": NUMBERS, "b": {"c": {"d": TEXT}}}),
    "texts of the script in every element": (f"a.map(x, '{'y' * 5000}' + '{'z' * 5000}')", {"a": NUMBERS}),
    "a list of the script": (f"[{'0,' * 4000}0].map(x, b + b)", {"b": TEXT}),
    "many copies": (f"[{', '.join('b' * 100)}]", {"b": TEXT}),
    "a long sum": (" + ".join("b" * 20), {"b": TEXT}),
    "copies in an object": ("{" + ", ".join(f"'{number}': b.c" for number in range(100)) + "}", {"b": {"c": TEXT}}),
    "a sum in a sum": ("size((b + b) + (b + b)) + size(b + (b + (b + (b + b))))", {"b": TEXT}),
    "too many values": ("a + a", {"a": [0] * 150_000}),
    "a pattern that grows": ("b.matches('((x{100}){100}){100}')", {"b": "x"}),
}


@pytest.mark.parametrize("what", EXPRESSIONS)
def test_an_expression_that_takes_too_much_is_stopped(what: str) -> None:
    script, values = EXPRESSIONS[what]
    said = refused("cel", script, **values)
    known = ("Iteration budget exceeded", "the expression may use", "the result has more than", "invalid repetition")
    assert any(one in said for one in known), said


ORDERS = [{"items": [{"price": 3, "name": "x" * 100}] * 20, "rate": 2}] * 100


@pytest.mark.parametrize(
    ("script", "values", "result"),
    [
        ("o.items.exists(i, i.price > o.limit)", {"o": {"items": [{"price": 3}] * 5000, "limit": 2}}, True),
        ("size(a.map(o, o.items.map(i, i.price * o.rate)))", {"a": ORDERS}, 100),
        ("size(a.filter(o, o.rate > 1).map(o, o.items))", {"a": ORDERS}, 100),
        ("size(b + b)", {"b": TEXT}, 2_000_000),
        ("b.matches('x+')", {"b": TEXT}, True),
        ("b.c.size() > 1 && b.c.contains('y') || b.d == 1", {"b": {"c": TEXT, "d": 1}}, True),
        ("a.all(x, x < 5000) && size(b) > 1", {"a": NUMBERS, "b": TEXT}, True),
        (
            "size(a.map(x, {'id': x, 'kind': k, 'name': k + '-' + string(x)}))",
            {"a": NUMBERS[:2000], "k": "order"},
            2000,
        ),
    ],
)
def test_usual_expressions_over_large_values_are_within_the_limits(
    script: str, values: dict[str, Any], result: object
) -> None:
    assert evaluate("cel", script, **values) == result


TEXTS = {
    "brackets": "(" * 20_000,
    "tables": "return " + "{" * 20_000,
    "a long sum": "return " + "1+" * 20_000 + "1",
    "concatenations": "return " + "'x'.." * 9_000 + "'x'",
    "functions": "return " + "function() return " * 2_000,
    "many locals": "local a = 1 " * 3_000,
    "unary operators": "return " + "not " * 10_000 + "1",
    "binary": "\x1bLua",
}


@pytest.mark.parametrize("language", ["cel", "lua", "jpath"])
@pytest.mark.parametrize("what", TEXTS)
def test_a_strange_text_is_compiled_or_refused(language: Language, what: str) -> None:
    try:
        Expressions().check(Expression(language=language, script=TEXTS[what]), ("value",))
    except ExpressionFailed as error:
        assert len(str(error)) < 500  # noqa: PT017 -- some are valid


@pytest.mark.parametrize("language", ["cel", "lua", "jpath"])
def test_a_long_text_is_refused(language: Language) -> None:
    with pytest.raises(ExpressionFailed, match="at most 50,000 characters, got 50,001"):
        Expressions().check(Expression(language=language, script="$" + " " * MAX_SCRIPT), ("value",))


PATHS = {
    "ever deeper": ("$" + "..*" * 12, nested(90)),
    "ever deeper lists": ("$" + "..[*]" * 12, nested(90)),
    "filters over everything": ("$" + "..[?(@..*)]" * 8, nested(90)),
    "filters that find nothing": ("$..*[?(@..x == 1)]", [[[0] * 60] * 60] * 60),
    "everything of everything": ("$..*..*..*", [[[0] * 60] * 60] * 60),
    "one long text in many values": ("$..*", [[[[["x" * 4_000_000]]]]]),
    "many values": ("$[*]", [0] * 300_000),
}


@pytest.mark.parametrize("what", PATHS)
def test_a_path_that_finds_too_much_is_stopped(what: str) -> None:
    script, document = PATHS[what]
    said = refused("jpath", script, value=document)
    assert "a path may look at 200,000 values at most" in said or "the result has more than" in said, said


@pytest.mark.parametrize(
    "script",
    [
        "$[" + " " * 40_000,
        "$[?" + " " * 40_000,
        "$[?(@" + " " * 40_000,
        "$[?(@.a" + " " * 40_000 + "!]",
        "$[?(@.a ==" + " " * 40_000 + ")]",
        "$['" + "\\'" * 20_000,
        "$[1" + " " * 40_000,
        "$[1:" + " " * 40_000,
        "$" + " " * 40_000 + "x",
        "$." + "a" * 40_000 + "!",
        "$[" + "9" * 40_000 + "]",
        "$[?(@ == " + "9" * 40_000 + ")]",
        "$[?(@ == " + '{"a":' * 8_000 + ")]",
        "$" + ".a" * 20_000 + "!",
    ],
    ids=lambda script: script[:12],
)
def test_a_path_is_read_in_time_that_grows_with_its_length(script: str) -> None:
    assert refused("jpath", script, value={})


def test_a_deeply_nested_value_is_walked_without_recursion() -> None:
    assert evaluate("jpath", "$..x", value=[nested(5000), {"x": 1}]) == 1


def test_an_evaluation_in_a_thread_is_stopped_too() -> None:
    """Scripts run in threads of the worker."""
    said: list[str] = []
    thread = threading.Thread(target=lambda: said.append(refused("lua", LOOPS["while"])))
    thread.start()
    thread.join(60)
    assert said
    assert "exceeded" in said[0]
    assert time.thread_time() >= 0
