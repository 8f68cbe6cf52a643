"""Which functions of a module are workflows, and which are activities."""

import ast
from dataclasses import dataclass, field

from resurgam.lint.names import CONTEXT, Names
from resurgam.lint.scopes import Scope, Scopes


@dataclass(slots=True)
class Definitions:
    """The functions that a module hands to a registry, in the order of the source."""

    workflows: list[Scope] = field(default_factory=list)
    activities: list[Scope] = field(default_factory=list)

    def add(self, kind: str, function: Scope) -> None:
        """Note a function once."""
        known = self.workflows if kind == "workflow" else self.activities
        if function not in known:
            known.append(function)


def find(tree: ast.Module, scopes: Scopes, names: Names) -> Definitions:
    """Find the functions under a decorator, and those that are given to one by a call."""
    found = Definitions()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                function = scopes.by_node[node]
                for decorator in node.decorator_list:
                    if kind := _kind(decorator, names, function.parent or function):
                        found.add(kind, function)
            case ast.Call(args=[ast.Name() as given, *_]):
                kind, function_given = _kind(node.func, names, scopes.root), names.resolve(given, scopes.root)
                target = names.function(function_given)
                if kind and target is not None:
                    found.add(kind, target)
    return found


def _kind(decorator: ast.expr, names: Names, scope: Scope) -> str:
    """Return what a decorator makes of a function.

    It goes by the last name, so that a registry of another module is known too; but what this module defines under
    such a name is something of its own.
    """
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = names.resolve(function, scope)
    last = name.rpartition(".")[2]
    if name.startswith((".", CONTEXT)) or last not in ("workflow", "activity"):
        return ""
    return last
