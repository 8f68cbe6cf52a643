"""Resolve the names of a module to their bindings, scope by scope, as Python does."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, TypeAlias

from resurgam.runtime.loop.forbidden import CALLS, VALUES

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Kind(Enum):
    """How a name is bound."""

    IMPORT = auto()
    DEFINITION = auto()
    VALUE = auto()
    ENTERED = auto()
    PARAMETER = auto()
    OTHER = auto()


@dataclass(frozen=True, slots=True)
class Binding:
    """One binding of a name: *text* is the dotted name it refers to, *value* and *annotation* are expressions."""

    kind: Kind
    text: str = ""
    value: ast.expr | None = None
    annotation: ast.expr | None = None


@dataclass(eq=False, slots=True)
class Scope:
    """A module, class, function or lambda, with the names that are bound in it."""

    node: ast.AST
    name: str
    parent: "Scope | None"
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    elsewhere: dict[str, str] = field(default_factory=dict)
    """Names declared ``global`` or ``nonlocal``, with that keyword."""

    def bind(self, name: str, binding: Binding) -> None:
        """Add a binding of a name to this scope."""
        self.bindings.setdefault(name, []).append(binding)

    def owner(self, name: str) -> "Scope | None":
        """Return the scope that binds a name as seen from here; None for a builtin."""
        scope: Scope | None = self._first_scope(name)
        while scope is not None:
            # The functions inside a class do not see its names.
            if name in scope.bindings and (scope is self or not isinstance(scope.node, ast.ClassDef)):
                return scope
            scope = scope.parent
        return None

    def _first_scope(self, name: str) -> "Scope | None":
        """Return the scope in which the search for a name starts."""
        match self.elsewhere.get(name):
            case "global":
                return self.module
            case "nonlocal":
                return self.parent
            case _:
                return self

    @property
    def module(self) -> "Scope":
        """The outermost scope."""
        return self if self.parent is None else self.parent.module

    def encloses(self, other: "Scope | None") -> bool:
        """Whether *other* is inside this scope."""
        while other is not None and other.parent is not self:
            other = other.parent
        return other is not None


class Scopes:
    """The scopes of a module, by node and by dotted name (with a leading dot)."""

    def __init__(self, tree: ast.Module, package: str = "") -> None:
        self.by_node: dict[ast.AST, Scope] = {}
        self.by_name: dict[str, Scope] = {}
        self.parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self.root = self._current = Scope(tree, "", None)
        self._package = package
        for statement in tree.body:
            self._read(statement)

    def _read(self, node: ast.AST) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                self._read_function(node)
            case ast.ClassDef():
                self._read_class(node)
            case ast.Global() | ast.Nonlocal():
                self._current.elsewhere.update(dict.fromkeys(node.names, type(node).__name__.lower()))
            case _:
                for name, binding in self._bindings(node):
                    self._bind(name, binding)
                self._read_all(ast.iter_child_nodes(node))

    def _read_all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self._read(node)

    def _read_function(self, node: Function) -> None:
        """Read a function; its decorators and defaults belong to the enclosing scope."""
        if isinstance(node, ast.Lambda):
            name = f"{self._current.name}.<lambda:{node.lineno}:{node.col_offset}>"
        else:
            name = f"{self._current.name}.{node.name}"
            self._current.bind(node.name, Binding(Kind.DEFINITION, name))
            self._read_all(node.decorator_list)
        self._read_all((*node.args.defaults, *node.args.kw_defaults))
        scope = self._open(node, name)
        for parameter in parameters(node.args):
            scope.bind(parameter.arg, Binding(Kind.PARAMETER, annotation=parameter.annotation))
        for rest in (node.args.vararg, node.args.kwarg):
            if rest is not None:
                scope.bind(rest.arg, Binding(Kind.OTHER))
        self._read_inside(scope, [node.body] if isinstance(node, ast.Lambda) else node.body)

    def _read_class(self, node: ast.ClassDef) -> None:
        name = f"{self._current.name}.{node.name}"
        self._current.bind(node.name, Binding(Kind.DEFINITION, name))
        self._read_all((*node.decorator_list, *node.bases, *node.keywords))
        self._read_inside(self._open(node, name), node.body)

    def _open(self, node: ast.AST, name: str) -> Scope:
        scope = self.by_node[node] = self.by_name[name] = Scope(node, name, self._current)
        return scope

    def _read_inside(self, scope: Scope, body: Iterable[ast.AST]) -> None:
        before, self._current = self._current, scope
        self._read_all(body)
        self._current = before

    def _bind(self, name: str, binding: Binding) -> None:
        if name not in self._current.elsewhere:
            self._current.bind(name, binding)
        elif (owner := self._current.owner(name)) is not None:
            owner.bind(name, binding)

    def _bindings(self, node: ast.AST) -> Iterator[tuple[str, Binding]]:
        """Yield the names that a node itself binds."""
        match node:
            case ast.Import():
                for alias in node.names:
                    whole = alias.name.partition(".")[0]
                    yield alias.asname or whole, Binding(Kind.IMPORT, alias.name if alias.asname else whole)
            case ast.ImportFrom():
                origin = self._origin(node)
                for name, bound in _imported(node, origin):
                    yield name, Binding(Kind.IMPORT, f"{origin}.{bound}")
            case ast.Assign():
                yield from _targets(node.targets, Binding(Kind.VALUE, value=node.value))
            case ast.AnnAssign() | ast.NamedExpr():
                annotation = node.annotation if isinstance(node, ast.AnnAssign) else None
                yield from _targets([node.target], Binding(Kind.VALUE, "", node.value, annotation))
            case ast.withitem(optional_vars=ast.Name(id=name)):
                yield name, Binding(Kind.ENTERED, value=node.context_expr)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name, Binding(Kind.OTHER)
            case ast.Name(ctx=ast.Store(), id=name) if not self._is_bound_above(node):
                yield name, Binding(Kind.OTHER)

    def _is_bound_above(self, node: ast.Name) -> bool:
        """Whether the parent node of a name has bound it already; an augmented name was bound before."""
        above = (ast.withitem, ast.AugAssign, ast.Assign, ast.AnnAssign, ast.NamedExpr)
        return isinstance(self.parents[node], above)

    def _origin(self, node: ast.ImportFrom) -> str:
        package = self._package.rsplit(".", node.level - 1)[0] if node.level else ""
        return ".".join(filter(None, (package, node.module))) or "?"


_STARRED: Final = {
    "resurgam": ("Break", "Context", "Continue", "Registry", "activity", "workflow"),
    "datetime": ("date", "datetime"),
    "pathlib": ("Path",),
}
"""Names that a ``*`` imports beside the forbidden functions."""


def _imported(node: ast.ImportFrom, origin: str) -> Iterator[tuple[str, str]]:
    """Yield the names that an import binds, each with its name in the imported module.

    Nothing is really imported, so of a ``*`` only the names that a rule mentions are known.
    """
    for alias in node.names:
        if alias.name != "*":
            yield alias.asname or alias.name, alias.name
            continue
        known = (name.rpartition(".") for name in (*CALLS, *VALUES))
        inside = {name for module, _, name in known if module == origin and name != "*"}
        yield from ((name, name) for name in sorted({*inside, *_STARRED.get(origin, ())}))


def _targets(targets: Iterable[ast.expr], binding: Binding) -> Iterator[tuple[str, Binding]]:
    for target in targets:
        if isinstance(target, ast.Name):
            yield target.id, binding


def parameters(arguments: ast.arguments) -> Iterator[ast.arg]:
    """Yield the parameters of a function in order, without ``*args`` and ``**kwargs``."""
    yield from (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
