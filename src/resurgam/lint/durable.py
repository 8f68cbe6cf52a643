"""The verbs of the context: the functions that they call, and which of them must be awaited."""

import ast
from collections.abc import Iterator
from typing import Final

from resurgam.lint.names import CONTEXT, Names
from resurgam.lint.scopes import Scope

_SAGA: Final = f"{CONTEXT}.saga()"
DURABLE: Final = frozenset(
    {
        *("activity", "run", "sleep", "sleep_until", "workflow", "flow", "promise", "resolve", "listen", "listen_many"),
        *("signal", "loop", "branch", "map", "race", "until", "handlers_finished", "check_version"),
    }
)
"""Verbs that return a future. `publish` does too, but nothing is lost if it is not awaited."""

RECORDED: Final = frozenset({"activity", "run", "workflow", "flow", "step"})
"""Verbs whose function does not run as workflow code here."""

INSIDE: Final = frozenset({"loop", "branch", "map", "until"})
"""Verbs whose function is workflow code."""

HANDLERS: Final = frozenset({"on_query", "on_update", "on_signal"})
_TESTS: Final = (ast.If, ast.While, ast.IfExp, ast.Assert)


def verb(call: ast.Call, names: Names, scope: Scope) -> str | None:
    """Return the verb of the context, or of a saga, that is called."""
    base, _, attribute = names.resolve(call.func, scope).rpartition(".")
    return attribute if base in (CONTEXT, _SAGA) else None


def functions(call: ast.Call, name: str) -> Iterator[ast.expr]:
    """Yield the arguments of a verb that run as workflow code."""
    given = call.args[:1] or [keyword.value for keyword in call.keywords if keyword.arg in ("body", "predicate")]
    if name in INSIDE:
        yield from given
    yield from (keyword.value for keyword in call.keywords if keyword.arg == "validator")


def is_endless(call: ast.Call) -> bool:
    """Whether a loop never forgets, so that its body may change outer variables."""
    return any(
        keyword.arg == "forget_every" and isinstance(keyword.value, ast.Constant) and keyword.value.value is None
        for keyword in call.keywords
    )


def need_not_be_awaited(call: ast.Call) -> bool:
    """Whether the options of a call say that the workflow does not wait for it."""
    return any(keyword.arg in ("detach", "deferred") for keyword in call.keywords)


def is_dropped(call: ast.Call, parents: dict[ast.AST, ast.AST], function: Scope, *, workflow: bool) -> bool:
    """Whether the future of a durable call is dropped, or used as if it were its value."""
    parent = parents[call]
    match parent:
        case ast.Expr() | ast.Compare() | ast.FormattedValue() | ast.UnaryOp(op=ast.Not()):
            return True
        case ast.Return():
            return workflow
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return not name.startswith("_") and not _is_read(name, function)
        case ast.BoolOp():
            return isinstance(parents[parent], _TESTS)
        case ast.If() | ast.While() | ast.IfExp() | ast.Assert():
            return parent.test is call
        case _:
            return False


def _is_read(name: str, function: Scope) -> bool:
    return (
        any(
            isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
            for node in ast.walk(function.node)
        )
        or name in function.elsewhere
    )
