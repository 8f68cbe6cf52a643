"""Resolve expressions to dotted names, through imports, aliases, annotations and constructors.

- ``time.time`` is that function, however it was imported or renamed;
- ``.checkout`` (with a leading dot) is a definition of the module itself;
- ``pathlib.Path()`` is an instance of ``pathlib.Path``, or the result of calling it;
- ``?`` is not known, and never a reason for a finding; the empty name is that of ``None``, and says nothing of a variable.
"""

import ast
import builtins
from typing import Final

from resurgam.lint.scopes import Binding, Kind, Scope, Scopes

UNKNOWN: Final = "?"
_SILENT: Final = ""
CONTEXT: Final = "resurgam.Context()"
SET: Final = "builtins.set()"
_BUILTINS: Final = frozenset(dir(builtins))
_SETS: Final = frozenset(
    {
        *("builtins.set", "builtins.frozenset", "typing.Set", "typing.FrozenSet", "typing.AbstractSet"),
        *("typing.MutableSet", "collections.abc.Set", "collections.abc.MutableSet"),
    }
)
_SET_METHODS: Final = frozenset({"union", "intersection", "difference", "symmetric_difference", "copy"})
_PATHS: Final = frozenset({"pathlib.Path", "pathlib.PosixPath", "pathlib.WindowsPath"})
_PATH: Final = "pathlib.Path()"
_PATH_ATTRIBUTES: Final = frozenset({"parent"})
_PATH_METHODS: Final = frozenset({"joinpath", "with_suffix", "with_name", "with_stem", "absolute", "resolve"})
_FUTURES: Final = frozenset({"create_task", "ensure_future", "create_future"})
_WRAPPED: Final = frozenset({"typing.Optional", "typing.Annotated", "typing.Final", "typing.ClassVar"})
_SAME_CONTEXT: Final = frozenset({f"{CONTEXT}.removed", f"{CONTEXT}.v()"})


class Names:
    """Resolve the expressions of one module."""

    def __init__(self, scopes: Scopes) -> None:
        self._scopes = scopes
        self._contexts: dict[Scope, str] = {}
        self._resolving: set[tuple[Scope, str]] = set()

    def set_context(self, function: Scope, name: str) -> None:
        """Declare that a parameter without annotation is the context, because of how the function is used."""
        self._contexts[function] = name

    def resolve(self, node: ast.expr | None, scope: Scope) -> str:
        """Return the dotted name of an expression in *scope*."""
        match node:
            case ast.Name():
                return self._name(node.id, scope)
            case ast.Attribute():
                return self._attribute(self.resolve(node.value, scope), node.attr, scope)
            case ast.Call():
                return self._result(self.resolve(node.func, scope), node, scope)
            case ast.Await() | ast.NamedExpr() | ast.Starred():
                return self.resolve(node.value, scope)
            case _:
                return self._value(node, scope)

    def _value(self, node: ast.expr | None, scope: Scope) -> str:
        """Return the type of the value of an expression that is not a name."""
        match node:
            case ast.Constant(value=None):
                return _SILENT
            case ast.Set() | ast.SetComp():
                elements = node.elts if isinstance(node, ast.Set) else [node.elt]
                return UNKNOWN if all(self._is_future(element, scope) for element in elements) else SET
            case ast.BinOp():
                return self._operation(node, scope)
            case ast.IfExp():
                return self._agreed([self.resolve(node.body, scope), self.resolve(node.orelse, scope)])
            case _:
                return UNKNOWN

    def instance(self, annotation: ast.expr | None, scope: Scope) -> str:
        """Return the name for a value with this annotation."""
        match annotation:
            case ast.Constant(value=str(text)):
                return self._quoted(text, scope)
            case ast.BinOp(op=ast.BitOr()):
                return self._agreed([self.instance(side, scope) for side in (annotation.left, annotation.right)])
            case ast.Subscript() if self.resolve(annotation.value, scope) in _WRAPPED:
                inner = annotation.slice
                return self.instance(inner.elts[0] if isinstance(inner, ast.Tuple) else inner, scope)
            case ast.Subscript():
                return self._generic(annotation, scope)
            case _:
                return _instance_of(self.resolve(annotation, scope))

    def function(self, name: str) -> Scope | None:
        """Return the function of this module with this name; None for a class."""
        found = self._scopes.by_name.get(name)
        return None if found is None or isinstance(found.node, ast.ClassDef) else found

    def of_class(self, name: str, attribute: str) -> Scope | None:
        """Return a method of a class of this module, its own or inherited from another class of the module."""
        found = self._scopes.by_name.get(name)
        if found is None or not isinstance(found.node, ast.ClassDef):
            return None
        own = self.function(f"{name}.{attribute}")
        bases = (self.resolve(base, found.parent or found) for base in found.node.bases)
        return own or next(filter(None, (self.of_class(base, attribute) for base in bases if base != name)), None)

    def _is_future(self, node: ast.expr, scope: Scope) -> bool:
        """Whether an element is a future of the workflow: these are hashed by location, and keep their order."""
        function = self.resolve(node.func, scope) if isinstance(node, ast.Call) else ""
        return function.startswith(f"{CONTEXT}.") or function.rpartition(".")[2] in _FUTURES

    # The kinds of expressions.

    def _name(self, name: str, scope: Scope) -> str:
        owner = scope.owner(name)
        if owner is None:
            return f"builtins.{name}" if name in _BUILTINS else UNKNOWN
        if self._contexts.get(owner) == name:
            return CONTEXT
        if (owner, name) in self._resolving:
            return _SILENT
        self._resolving.add((owner, name))
        try:
            return self._agreed([self._bound(name, binding, owner) for binding in owner.bindings[name]])
        finally:
            self._resolving.discard((owner, name))

    def _bound(self, name: str, binding: Binding, owner: Scope) -> str:
        if binding.annotation is not None:
            return self.instance(binding.annotation, owner)
        match binding.kind:
            case Kind.IMPORT | Kind.DEFINITION:
                return _canonical(binding.text)
            case Kind.VALUE | Kind.ENTERED if isinstance(binding.value, ast.Lambda):
                return self._scopes.by_node[binding.value].name
            case Kind.VALUE | Kind.ENTERED:
                return self.resolve(binding.value, owner)
            case Kind.PARAMETER:
                return self._parameter(name, owner)
            case _:
                return UNKNOWN

    @staticmethod
    def _parameter(name: str, function: Scope) -> str:
        """Return the name for a parameter without annotation: the context if it is called ``ctx``, or ``self``."""
        if name == "ctx":
            return CONTEXT
        around = function.parent
        if around is None or not isinstance(around.node, ast.ClassDef) or next(iter(function.bindings)) != name:
            return UNKNOWN
        return f"{around.name}()"

    def _attribute(self, base: str, attribute: str, scope: Scope) -> str:
        if base == _PATH and attribute in _PATH_ATTRIBUTES:
            return _PATH
        found = f"{base}.{attribute}"
        if found in _SAME_CONTEXT:
            return CONTEXT
        if not base.startswith("."):
            return _canonical(found)
        kind = base.removesuffix("()")
        method = self.of_class(kind, attribute)
        if method is not None:
            return method.name
        return self._field(kind, attribute) if base != kind else found

    def _field(self, kind: str, attribute: str) -> str:
        found = self._scopes.by_name.get(kind)
        declared = [] if found is None else found.bindings.get(attribute, [])
        return self._agreed([self._bound(attribute, binding, found) for binding in declared if found is not None])

    def _result(self, function: str, call: ast.Call, scope: Scope) -> str:
        if function.startswith(f"{SET}."):
            return SET if function.rpartition(".")[2] in _SET_METHODS else UNKNOWN
        if function.startswith(f"{_PATH}."):
            return _PATH if function.rpartition(".")[2] in _PATH_METHODS else UNKNOWN
        if function == f"{CONTEXT}.activity" and call.args:
            return self._result(self.resolve(call.args[0], scope), call, scope)
        local = self.function(function)
        if local is not None and not isinstance(local.node, ast.Lambda):
            returns = getattr(local.node, "returns", None)
            return self.instance(returns, local.parent or local) if returns is not None else UNKNOWN
        made = _instance_of(function)
        return CONTEXT if made in _SAME_CONTEXT else made

    def _operation(self, node: ast.BinOp, scope: Scope) -> str:
        sides = [self.resolve(side, scope) for side in (node.left, node.right)]
        if isinstance(node.op, ast.Div) and _PATH in sides:
            return _PATH
        if isinstance(node.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor) and any(map(_is_set_like, sides)):
            return SET
        return _SILENT if _SILENT in sides else UNKNOWN

    def _generic(self, annotation: ast.Subscript, scope: Scope) -> str:
        made = _instance_of(self.resolve(annotation.value, scope))
        inner = self.instance(annotation.slice, scope) if made == SET else ""
        return UNKNOWN if inner in ("asyncio.Task()", "asyncio.Future()") else made

    def _quoted(self, text: str, scope: Scope) -> str:
        try:
            return self.instance(ast.parse(text, mode="eval").body, scope)
        except SyntaxError:
            return UNKNOWN

    @staticmethod
    def _agreed(found: list[str]) -> str:
        """Return the one name that all bindings agree on, without those that say nothing."""
        names = set(found) - {_SILENT}
        return names.pop() if len(names) == 1 else UNKNOWN


def is_module_level(node: ast.expr, scope: Scope) -> bool:
    """Whether an expression starts with a variable of the module."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    if not isinstance(node, ast.Name):
        return False
    owner = scope.owner(node.id)
    return owner is scope.module and any(binding.kind is Kind.VALUE for binding in owner.bindings[node.id])


def _is_set_like(name: str) -> bool:
    return name == SET or name.endswith((".keys()", ".items()"))


def _instance_of(name: str) -> str:
    if name in _SETS:
        return SET
    if name in _PATHS:
        return _PATH
    return name if name in (UNKNOWN, _SILENT) else f"{name}()"


def _canonical(name: str) -> str:
    """Return the public name of a definition in a submodule of this package."""
    if name.startswith("resurgam.") and name.endswith((".Context", ".Registry", ".workflow", ".activity")):
        return f"resurgam.{name.rpartition('.')[2]}" if "()" not in name else name
    return name
