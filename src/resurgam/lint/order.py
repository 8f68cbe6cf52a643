"""Find where code depends on the iteration order of a set."""

import ast
from collections.abc import Iterator
from typing import Final

from resurgam.lint.names import SET, Names
from resurgam.lint.scopes import Scope

_ORDERLESS: Final = frozenset(
    f"builtins.{name}" for name in ("sorted", "len", "sum", "min", "max", "any", "all", "set", "frozenset", "bool")
)
_ORDERED: Final = frozenset(
    {
        *(f"builtins.{name}" for name in ("list", "tuple", "iter", "enumerate", "zip", "map", "filter", "str", "repr")),
        *("builtins.dict.fromkeys", "collections.deque", "itertools.chain", "itertools.islice", "asyncio.as_completed"),
        "functools.reduce",
    }
)
_ORDERED_METHODS: Final = frozenset({"join", "extend"})


def ordered_sets(node: ast.AST, names: Names, scope: Scope, parents: dict[ast.AST, ast.AST]) -> Iterator[ast.expr]:
    """Yield the sets whose order this node makes visible."""
    for candidate in _candidates(node, names, scope, parents):
        if names.resolve(candidate, scope) == SET:
            yield candidate


def _candidates(node: ast.AST, names: Names, scope: Scope, parents: dict[ast.AST, ast.AST]) -> Iterator[ast.expr]:
    match node:
        case ast.For() | ast.AsyncFor():
            yield node.iter
        case ast.ListComp() | ast.DictComp() | ast.GeneratorExp():
            if not _is_orderless(parents[node], names, scope, parents):
                yield from (generator.iter for generator in node.generators)
        case ast.Starred(ctx=ast.Load()):
            # The order is lost again in a set, or in a call that does not depend on it.
            if not isinstance(parents[node], ast.Set) and not _is_orderless(parents[node], names, scope, parents):
                yield node.value
        case ast.Assign(targets=[ast.Tuple() | ast.List(), *_]) | ast.YieldFrom() | ast.FormattedValue():
            yield node.value
        case ast.Call():
            if not _is_orderless(parents[node], names, scope, parents):
                yield from _arguments(node, names, scope)


def _arguments(call: ast.Call, names: Names, scope: Scope) -> Iterator[ast.expr]:
    function = names.resolve(call.func, scope)
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if function in _ORDERED or method in _ORDERED_METHODS:
        yield from (argument for argument in call.args if not isinstance(argument, ast.Starred))
    if function == "resurgam.Context().map":
        yield from call.args[1:2]
    if method == "pop" and not call.args and isinstance(call.func, ast.Attribute):
        yield call.func.value


def _is_orderless(node: ast.AST, names: Names, scope: Scope, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether a call does not depend on the order of its arguments, as in ``sorted(map(str, found))``."""
    if not isinstance(node, ast.Call):
        return False
    function = names.resolve(node.func, scope)
    return function in _ORDERLESS or (function in _ORDERED and _is_orderless(parents[node], names, scope, parents))
