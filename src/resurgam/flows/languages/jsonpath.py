"""Paths into JSON values: ``$.order.items[0].price``, ``$..id``, ``$.items[?(@.price > 10)]``.

A path finds no value, one, or a list of several. An explicit null is a value.
"""

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from resurgam.flows.errors import ExpressionFailed
from resurgam.flows.languages.compiled import NOTHING, Compiled
from resurgam.flows.languages.limits import check_script, check_size

MAX_VISITS: Final = 200_000
"""Values that one evaluation may look at."""

_TOKEN: Final = re.compile(
    r"""\s*+(?:
      (?P<deep>\.\.) (?: (?P<deep_name>[A-Za-z_][\w-]*) | (?P<deep_all>\*) | (?=\[) )
    | \.(?P<name>[A-Za-z_][\w-]*) | (?P<all>\.\*|\[\s*+\*\s*+\])
    | \[\s*+(?P<quoted>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\s*+\]
    | \[\s*+(?P<slice>(?:-?\d{1,18})?\s*+:\s*+(?:-?\d{1,18})?(?:\s*+:\s*+(?:-?\d{1,18})?)?)\s*+\]
    | \[\s*+(?P<index>-?\d{1,18})\s*+\]
    | \[\s*+\?(?P<filter>[^\]]*)\]
    )""",
    re.VERBOSE,
)
_OPERATOR: Final = re.compile(r"==|!=|<=|>=|<|>")
_OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class _Visits:
    """Count what an evaluation looks at: ``..`` repeated finds the same values ever more often."""

    def __init__(self) -> None:
        self._left = MAX_VISITS

    def counted(self, values: Iterable[Any]) -> Iterator[Any]:
        """Yield the values; raise `ExpressionFailed` at the limit."""
        for value in values:
            self._left -= 1
            if self._left < 0:
                raise ExpressionFailed(f"a path may look at {MAX_VISITS:,} values at most")
            yield value


_Select = Callable[[Any, _Visits], Iterable[Any]]


class _Path:
    def __init__(self, selects: Sequence[_Select], parameter: str | None) -> None:
        self._selects = selects
        self._parameter = parameter

    def evaluate(self, values: Mapping[str, object]) -> Any:
        document = values if self._parameter is None else values.get(self._parameter)
        found = self.find(document, _Visits())
        if not found:
            return NOTHING
        return check_size(found[0] if len(found) == 1 else found)

    def find(self, document: Any, visits: _Visits) -> list[Any]:
        """Return everything that the path leads to."""
        found: list[Any] = [document]
        for select in self._selects:
            found = [value for parent in found for value in visits.counted(select(parent, visits))]
        return found


def compile_jsonpath(script: str, parameters: Sequence[str]) -> Compiled:
    """Compile a path. Its document is the value of the one parameter, or else the object of all of them."""
    check_script(script)
    only = parameters[0] if tuple(parameters) in (("value",), ("result",)) else None
    text = script.strip()
    if not text.startswith("$"):
        raise ExpressionFailed(f"a path begins with '$', got {script[:80]!r}")
    return _Path(_selects(text[1:], script), only)


def _selects(text: str, script: str) -> list[_Select]:
    selects: list[_Select] = []
    position = 0
    text = text.rstrip()
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise ExpressionFailed(f"{script[:80]!r} is no path: {text[position : position + 80]!r} is not understood")
        selects += _read(token, script)
        position = token.end()
    return selects


def _read(token: re.Match[str], script: str) -> Iterator[_Select]:
    if token["deep"]:
        yield _descend
        if token["deep_name"]:
            yield _member(token["deep_name"])
        elif token["deep_all"]:
            yield _children
    elif token["name"]:
        yield _member(token["name"])
    elif token["all"]:
        yield _children
    elif token["quoted"]:
        yield _member(_unquoted(token["quoted"]))
    elif token["slice"] is not None:
        bounds = [int(part) if part.strip() else None for part in token["slice"].split(":")]
        if bounds[2:] == [0]:
            raise ExpressionFailed(f"{script[:80]!r}: the step of a slice must not be 0")
        yield _slice(slice(*bounds))
    elif token["index"] is not None:
        yield _index(int(token["index"]))
    else:
        yield _filter(token["filter"], script)


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1])


def _member(name: str) -> _Select:
    def select(parent: Any, visits: _Visits) -> Iterator[Any]:
        if isinstance(parent, Mapping) and name in parent:
            yield parent[name]

    return select


def _index(number: int) -> _Select:
    def select(parent: Any, visits: _Visits) -> Iterator[Any]:
        if isinstance(parent, list) and -len(parent) <= number < len(parent):
            yield parent[number]

    return select


def _slice(bounds: slice) -> _Select:
    def select(parent: Any, visits: _Visits) -> Iterator[Any]:
        if isinstance(parent, list):
            yield from parent[bounds]

    return select


def _children(parent: Any, visits: _Visits) -> Iterable[Any]:
    if isinstance(parent, Mapping):
        return parent.values()
    return parent if isinstance(parent, list) else ()


def _descend(parent: Any, visits: _Visits) -> Iterator[Any]:
    """Yield a value and everything below it; without recursion, because values may be nested deeply."""
    pending = [parent]
    while pending:
        value = pending.pop()
        yield value
        pending += reversed(list(_children(value, visits)))


def _filter(text: str, script: str) -> _Select:
    condition = text.strip()
    if condition.startswith("("):
        condition = condition[1:].removesuffix(")").strip()
    if not condition.startswith("@"):
        raise ExpressionFailed(f"{script[:80]!r}: a filter begins with '@', got {condition[:80]!r}")
    found = _OPERATOR.search(condition)
    path = _Path(_selects(condition[1 : found.start()] if found else condition[1:], script), None)
    symbol, literal = (found[0], _literal(condition[found.end() :], script)) if found else ("", None)

    def holds(candidate: Any, visits: _Visits) -> bool:
        values = path.find(candidate, visits)
        if not symbol:
            return bool(values)
        return any(_compares(one, symbol, literal) for one in values)

    def select(parent: Any, visits: _Visits) -> Iterator[Any]:
        candidates = visits.counted(_children(parent, visits))
        yield from (candidate for candidate in candidates if holds(candidate, visits))

    return select


def _literal(text: str, script: str) -> Any:
    """Return the number, text, boolean or null that a filter compares with."""
    quoted = text.strip()
    if quoted[:1] == quoted[-1:] == "'" and len(quoted) > 1:
        return _unquoted(quoted)
    try:
        return msgspec.json.decode(quoted, type=str | int | float | bool | None)
    except msgspec.DecodeError:
        raise ExpressionFailed(f"{script[:80]!r}: {quoted[:80]!r} is no number, text or other JSON value") from None


def _compares(left: Any, symbol: str, right: Any) -> bool:
    """Whether a comparison holds. True is no number here, though it is one in Python."""
    if isinstance(left, bool) != isinstance(right, bool):
        return symbol == "!="
    numbers = isinstance(left, int | float) and isinstance(right, int | float)
    ordered = numbers or (isinstance(left, str) and isinstance(right, str))
    return (ordered or symbol in ("==", "!=")) and _OPERATORS[symbol](left, right)
