"""Bound the work of a CEL expression before it is evaluated.

CEL ends every evaluation after some thousand iterations, but not after some gigabytes: within a loop, a large argument may
be copied or searched each time. What an expression does with its arguments is known when it is compiled; how large they
are, when it is evaluated.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from resurgam.flows.errors import ExpressionFailed

MAX_WORK: Final = 20_000_000
"""Bytes of arguments, as JSON, that an evaluation may copy or search."""
_MAX_ITERATIONS: Final = 10_000
"""CEL itself allows no more in one evaluation."""

_EACH: Final = "*"
"""In a path: any element of a list."""
_Path = tuple[str, ...]
_Message = Mapping[int, Sequence[Any]]


class Uses:
    """How an expression uses its arguments. *looped* are used in each iteration of a loop, *copied* outside of loops."""

    def __init__(self, serialized: bytes) -> None:
        self.looped: list[_Path] = []
        self.copied: list[tuple[_Path, int]] = []
        self.nested = False
        self._length = len(serialized)
        self._texts = 0
        """Bytes of texts in loops."""
        checked = _message(_message(serialized)[2][0])
        self._visit(_message(checked[4][0]), {}, 0, -1)

    def check(self, values: Mapping[str, object]) -> None:
        """Raise `ExpressionFailed` if an evaluation with these values may take too much time or memory."""
        work = sum(_size(values, path) * times for path, times in self.copied)
        if self.looped or self._texts:
            whole = len(msgspec.json.encode(values))
            iterations = _MAX_ITERATIONS if self.nested else min(_MAX_ITERATIONS, whole + self._length)
            sizes = (_size(values, path) if path else whole for path in self.looped)
            work += iterations * (sum(sizes) + self._texts)
        if work > MAX_WORK:
            raise ExpressionFailed(
                f"the expression may use {work:,} bytes of its values, in loops or copies; at most {MAX_WORK:,} are allowed"
            )

    def _visit(
        self, expression: _Message, loops: Mapping[str, tuple[_Path | None, int]], depth: int, copies: int
    ) -> None:
        """Note the uses in a part of an expression. *copies*: how often what it is used for is copied; -1 is never."""
        path = _path(expression, loops)
        if path is not None:
            self._use(path, expression, loops, depth, copies)
        elif 9 in expression:
            self._visit_loop(_message(expression[9][0]), loops, depth, copies)
        elif 3 in expression and depth:
            constant = _message(expression[3][0])
            self._texts += sum(len(text) for field in (6, 7) for text in constant.get(field, ()))
        elif 6 in expression:
            call = _message(expression[6][0])
            function = call[2][0].decode()
            inner = max(copies, 0) + 1 if function == "_+_" else max(copies, 0) if function in _COPYING else -1
            for part in (*call.get(1, ()), *call.get(3, ())):
                self._visit(_message(part), loops, depth, inner)
        else:
            for part in _parts(expression):
                self._visit(part, loops, depth, max(copies, 0))

    def _use(
        self,
        path: _Path,
        expression: _Message,
        loops: Mapping[str, tuple[_Path | None, int]],
        depth: int,
        copies: int,
    ) -> None:
        name = _root(expression)
        bound = loops.get(name)
        if bound is None and depth:
            self.looped.append(path)
        elif bound is not None and bound[1] < depth:
            # A variable of an outer loop; without a path it may be as large as everything.
            self.looped.append(path if bound[0] is not None else ())
        elif bound is None and copies >= 0:
            self.copied.append((path, copies + 1))

    def _visit_loop(
        self, loop: _Message, loops: Mapping[str, tuple[_Path | None, int]], depth: int, copies: int
    ) -> None:
        over = _message(loop[2][0])
        path = _path(over, loops)
        self._visit(over, loops, depth, copies)
        elements = (*path, _EACH) if path is not None and _root(over) not in _unknown(loops) else None
        names = {loop[field][0].decode(): (elements, depth + 1) for field in (1, 8) if field in loop}
        result = {loop[3][0].decode(): ((), depth + 1)}
        self.nested = self.nested or depth > 0
        for field in (5, 6):
            self._visit(_message(loop[field][0]), {**loops, **names, **result}, depth + 1, copies)


_COPYING: Final = frozenset({"_[_]", "_?_:_", "bytes", "string", "dyn"})
"""Functions whose result may be as large as what they are called with; others answer with little."""


def _unknown(loops: Mapping[str, tuple[_Path | None, int]]) -> frozenset[str]:
    return frozenset(name for name, (path, _) in loops.items() if path is None)


def _path(expression: _Message, loops: Mapping[str, tuple[_Path | None, int]]) -> _Path | None:
    """Return which part of the arguments an expression is: a name with fields; None if it is something else."""
    if 4 in expression:
        name = _message(expression[4][0])[1][0].decode()
        bound = loops.get(name)
        return (name,) if bound is None else (bound[0] or (name,))
    if 5 in expression:
        select = _message(expression[5][0])
        before = _path(_message(select[1][0]), loops)
        return None if before is None else (*before, select[2][0].decode())
    return None


def _root(expression: _Message) -> str:
    """Return the name at the beginning of a path; empty if it is no path."""
    while 5 in expression:
        expression = _message(_message(expression[5][0])[1][0])
    return _message(expression[4][0])[1][0].decode() if 4 in expression else ""


def _parts(expression: _Message) -> Iterator[_Message]:
    """Yield the parts of a selection, a list or an object."""
    if 5 in expression:
        yield _message(_message(expression[5][0])[1][0])
    for written in expression.get(7, ()):
        yield from map(_message, _message(written).get(1, ()))
    for written in expression.get(8, ()):
        for entry in map(_message, _message(written).get(2, ())):
            yield from map(_message, (*entry.get(3, ()), *entry.get(4, ())))


def _size(value: Any, path: _Path) -> int:
    """Return the size of the largest value at a path, as JSON; what is not there has none."""
    for number, name in enumerate(path):
        if name == _EACH:
            elements = value if isinstance(value, list) else ()
            return max((_size(one, path[number + 1 :]) for one in elements), default=0)
        value = value.get(name) if isinstance(value, Mapping) else None
    return len(msgspec.json.encode(value))


def _message(data: bytes) -> dict[int, list[Any]]:
    """Return the fields of a message in the format of protocol buffers, by number."""
    fields: dict[int, list[Any]] = {}
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        match key & 7:
            case 0:
                value: Any
                value, at = _varint(data, at)
            case 2:
                length, at = _varint(data, at)
                value, at = data[at : at + length], at + length
            case kind:
                length = 8 if kind == 1 else 4
                value, at = data[at : at + length], at + length
        fields.setdefault(key >> 3, []).append(value)
    return fields


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
