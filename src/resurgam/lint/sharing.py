"""Find changes to variables that outlive the code which makes them: those outside a loop's body, and of the module."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from resurgam.lint.names import CONTEXT, Names
from resurgam.lint.scopes import Kind, Scope

_CHANGING: Final = frozenset(
    {
        *("append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse", "update", "setdefault", "popitem"),
        *("add", "discard", "appendleft", "extendleft", "popleft", "rotate", "put_nowait"),
        *("difference_update", "intersection_update", "symmetric_difference_update"),
    }
)
_MUTABLE: Final = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
_CONTAINERS: Final = frozenset(
    {
        *("builtins.list()", "builtins.dict()", "builtins.set()", "builtins.bytearray()", "collections.deque()"),
        *("collections.defaultdict()", "collections.Counter()", "collections.OrderedDict()", "asyncio.Queue()"),
        *("itertools.count()", "itertools.cycle()"),
    }
)


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a variable of the scope *owner*: by assignment if *assigned*, else by a call that may change it."""

    name: str
    owner: Scope
    node: ast.expr
    assigned: bool


def changes(node: ast.AST, scope: Scope) -> Iterator[Change]:
    """Yield the variables that a node changes, if another scope than *scope* binds them."""
    for target, assigned in _targets(node, scope):
        name = _root(target)
        owner = None if name is None else scope.owner(name)
        if name is not None and owner is not None and owner is not scope:
            yield Change(name, owner, target, assigned)


def is_shared(change: Change, names: Names) -> bool:
    """Whether a variable of the module is changed: assigned to, or a container modified."""
    bound = [binding for binding in change.owner.bindings[change.name] if binding.kind is not Kind.IMPORT]
    if change.owner.parent is not None or not bound:
        return False
    return change.assigned or any(
        isinstance(binding.value, _MUTABLE) or names.resolve(binding.value, change.owner) in _CONTAINERS
        for binding in bound
    )


def is_outer(change: Change, body: Scope | None, names: Names) -> bool:
    """Whether a variable of a function around a loop's *body* is changed."""
    if body is None or change.owner.parent is None or not change.owner.encloses(body):
        return False
    return names.resolve(ast.Name(change.name), change.owner) != CONTEXT


def _targets(node: ast.AST, scope: Scope) -> Iterator[tuple[ast.expr, bool]]:
    match node:
        case ast.Name(ctx=ast.Store() | ast.Del(), id=name) if name in scope.elsewhere:
            yield node, True
        case ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del()):
            yield node, True
        case ast.Call(func=ast.Attribute(attr=attribute)) if attribute in _CHANGING:
            assert isinstance(node.func, ast.Attribute)
            yield node.func.value, False
        case ast.Call(func=ast.Name(id="next"), args=[ast.Name() as iterator, *_]):
            yield iterator, False


def _root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None
