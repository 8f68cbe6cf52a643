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

_Select = Callable[[Any], Iterator[Any]]

_TOKEN: Final = re.compile(
    r"""\s*(?:
      (?P<deep>\.\.) (?: (?P<deep_name>[A-Za-z_][\w-]*) | (?P<deep_all>\*) | (?=\[) )
    | \.(?P<name>[A-Za-z_][\w-]*) | (?P<all>\.\*|\[\s*\*\s*\])
    | \[\s*(?P<quoted>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\s*\]
    | \[\s*(?P<slice>-?\d*\s*:\s*-?\d*(?:\s*:\s*-?\d*)?)\s*\]
    | \[\s*(?P<index>-?\d+)\s*\]
    | \[\s*\?\s*\(?\s*(?P<filter>@[^\]]*?)\s*\)?\s*\]
    )""",
    re.VERBOSE,
)
_COMPARISON: Final = re.compile(r"^@(?P<path>.*?)(?:\s*(?P<operator>==|!=|<=|>=|<|>)\s*(?P<literal>.+))?$", re.DOTALL)
_OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class _Path:
    def __init__(self, selects: Sequence[_Select], parameter: str | None) -> None:
        self._selects = selects
        self._parameter = parameter

    def evaluate(self, values: Mapping[str, object]) -> Any:
        document = values if self._parameter is None else values.get(self._parameter)
        found = self.find(document)
        if not found:
            return NOTHING
        return found[0] if len(found) == 1 else found

    def find(self, document: Any) -> list[Any]:
        """Return everything that the path leads to."""
        found: Iterable[Any] = [document]
        for select in self._selects:
            found = [value for parent in found for value in select(parent)]
        return list(found)


def compile_jsonpath(script: str, parameters: Sequence[str]) -> Compiled:
    """Compile a path. Its document is the value of the one parameter, or else the object of all of them."""
    only = parameters[0] if tuple(parameters) in (("value",), ("result",)) else None
    return _parse(script, only)


def _parse(script: str, parameter: str | None) -> _Path:
    text = script.strip()
    if not text.startswith("$"):
        raise ExpressionFailed(f"a path begins with '$', got {script!r}")
    return _Path(_selects(text[1:], script), parameter)


def _selects(text: str, script: str) -> list[_Select]:
    selects: list[_Select] = []
    position = 0
    while text[position:].strip():
        token = _TOKEN.match(text, position)
        if token is None:
            raise ExpressionFailed(f"{script!r} is no path: {text[position:]!r} is not understood")
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
            raise ExpressionFailed(f"{script!r}: the step of a slice must not be 0")
        yield _slice(slice(*bounds))
    elif token["index"] is not None:
        yield _index(int(token["index"]))
    else:
        yield _filter(token["filter"], script)


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1])


def _member(name: str) -> _Select:
    def select(parent: Any) -> Iterator[Any]:
        if isinstance(parent, Mapping) and name in parent:
            yield parent[name]

    return select


def _index(number: int) -> _Select:
    def select(parent: Any) -> Iterator[Any]:
        if isinstance(parent, list) and -len(parent) <= number < len(parent):
            yield parent[number]

    return select


def _slice(bounds: slice) -> _Select:
    def select(parent: Any) -> Iterator[Any]:
        if isinstance(parent, list):
            yield from parent[bounds]

    return select


def _children(parent: Any) -> Iterator[Any]:
    if isinstance(parent, Mapping):
        yield from parent.values()
    elif isinstance(parent, list):
        yield from parent


def _descend(parent: Any) -> Iterator[Any]:
    """Yield a value and everything below it; without recursion, because values may be nested deeply."""
    pending = [parent]
    while pending:
        value = pending.pop()
        yield value
        pending += reversed(list(_children(value)))


def _filter(text: str, script: str) -> _Select:
    parsed = _COMPARISON.match(text)
    assert parsed is not None
    path = _Path(_selects(parsed["path"], script), None)
    literal = _literal(parsed["literal"], script) if parsed["operator"] else None
    compare = _OPERATORS[parsed["operator"]] if parsed["operator"] else None

    def holds(candidate: Any) -> bool:
        found = path.find(candidate)
        if compare is None:
            return bool(found)
        return any(_is_comparable(parsed["operator"], one, literal) and compare(one, literal) for one in found)

    def select(parent: Any) -> Iterator[Any]:
        yield from (candidate for candidate in _children(parent) if holds(candidate))

    return select


def _literal(text: str, script: str) -> Any:
    quoted = text.strip()
    if quoted[:1] == quoted[-1:] == "'" and len(quoted) > 1:
        return _unquoted(quoted)
    try:
        return msgspec.json.decode(quoted)
    except msgspec.DecodeError:
        raise ExpressionFailed(f"{script!r}: {quoted!r} is no number, text or other JSON value") from None


def _is_comparable(symbol: str, left: Any, right: Any) -> bool:
    if symbol in ("==", "!="):
        return True
    numbers = isinstance(left, int | float) and isinstance(right, int | float)
    return numbers or (isinstance(left, str) and isinstance(right, str))
