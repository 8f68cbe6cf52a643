"""Find the workflows and the activities of a module."""

import ast
from dataclasses import dataclass, field

from resurgam.lint.names import CONTEXT, Names
from resurgam.lint.scopes import Scope, Scopes


@dataclass(slots=True)
class Definitions:
    """The functions that a module registers, in the order of the source."""

    workflows: list[Scope] = field(default_factory=list)
    activities: list[Scope] = field(default_factory=list)

    def add(self, kind: str, function: Scope) -> None:
        """Add a function, once."""
        known = self.workflows if kind == "workflow" else self.activities
        if function not in known:
            known.append(function)


def find(tree: ast.Module, scopes: Scopes, names: Names) -> Definitions:
    """Find the functions with a registering decorator, and those passed to one in a call."""
    found = Definitions()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                function = scopes.by_node[node]
                for decorator in node.decorator_list:
                    if kind := _kind(decorator, names, function.parent or function):
                        found.add(kind, function)
            case ast.Call(args=[ast.Name() as given, *_]):
                kind, function_name = _kind(node.func, names, scopes.root), names.resolve(given, scopes.root)
                target = names.function(function_name)
                if kind and target is not None:
                    found.add(kind, target)
    return found


def _kind(decorator: ast.expr, names: Names, scope: Scope) -> str:
    """Return the kind of definition that a decorator makes: ``workflow``, ``activity`` or nothing.

    Only the last part of its name counts, so that the registry of another module is recognised; a decorator that this
    module itself defines is not.
    """
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = names.resolve(function, scope)
    last = name.rpartition(".")[2]
    if name.startswith((".", CONTEXT)) or last not in ("workflow", "activity"):
        return ""
    return last
