"""Makes mutants of a module: each is its source with one small mistake, put in by the syntax tree.

A mutant lives in the functions themselves: their code is exchanged and put back, so that modules that have imported them by
name runs the mutant too, and no class is made twice.
"""

import ast
import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType

_OUT = type(ast.parse("a not in b", mode="eval").body.ops[0])  # type: ignore[attr-defined]
_FLIPPED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Gt: (ast.GtE, ast.Lt),
    ast.Lt: (ast.LtE, ast.Gt),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
_FLIPPED |= {ast.In: (_OUT,), _OUT: (ast.In,)}
_VERDICTS = {"New": "Inserted", "Inserted": "New", "Replayed": "Ignored", "Ignored": "Replayed", "Peeked": "New"}
_OTHERS = {"appended": "inserted", "inserted": "appended", "next": "rest", "code_value": "history_value"}


@dataclass(frozen=True)
class Mutant:
    """One mistake: the function it is in, what was written there, and what is written now."""

    where: str
    was: str
    now: str
    tree: ast.Module

    def __str__(self) -> str:
        return f"{self.where}: {self.was} -> {self.now}"


def mutants(module: ModuleType) -> Iterator[Mutant]:
    """Return every mutant of the functions of a module."""
    source = inspect.getsource(module)
    tree = ast.parse(source)
    for where, function in _functions(tree):
        for index, node in enumerate(_nodes(function)):
            for number, changed in enumerate(_mistakes(node)):
                del changed
                yield _made(tree, where, index, number)


def _made(tree: ast.Module, where: str, index: int, number: int) -> Mutant:
    mutated = copy.deepcopy(tree)
    function = dict(_functions(mutated))[where]
    node = list(_nodes(function))[index]
    was = ast.unparse(node)
    change = list(_mistakes(node))[number]
    change()
    return Mutant(where, _line(was), _line(ast.unparse(node)), ast.fix_missing_locations(mutated))


def _line(text: str) -> str:
    return " ".join(text.split())


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{part.name}", part) for part in node.body if isinstance(part, ast.FunctionDef))


def _nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Return what a function does; what it says of its types is no matter."""
    yield function
    for part in function.body:
        yield from ast.walk(part)


Change = Callable[[], None]


def _mistakes(node: ast.AST) -> Iterator[Change]:
    """Return the ways to get a node wrong; each changes it in place."""
    if isinstance(node, ast.Compare):
        yield from (_set_operator(node, other) for other in _FLIPPED[type(node.ops[0])])
    elif isinstance(node, ast.BoolOp):
        yield lambda: setattr(node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
        yield from (_drop(node.values, index) for index in range(len(node.values)))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield lambda: setattr(node, "operand", ast.UnaryOp(ast.Not(), node.operand))
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield lambda: setattr(node, "op", ast.Sub())
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield lambda: setattr(node, "value", node.value + 1)
    elif isinstance(node, ast.If | ast.IfExp):
        yield lambda: setattr(node, "test", ast.Constant(value=True))
        yield lambda: setattr(node, "test", ast.Constant(value=False))
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in _VERDICTS:
        yield lambda: setattr(node, "id", _VERDICTS[node.id])
    elif isinstance(node, ast.Attribute) and node.attr in _OTHERS:
        yield lambda: setattr(node, "attr", _OTHERS[node.attr])
    if isinstance(node, ast.FunctionDef | ast.If | ast.While | ast.For):
        yield from (_leave_out(node.body, index) for index, part in enumerate(node.body) if _does_something(part))


def _set_operator(node: ast.Compare, other: type[ast.cmpop]) -> Change:
    return lambda: setattr(node, "ops", [other(), *node.ops[1:]])


def _drop(parts: list[ast.expr], index: int) -> Change:
    return lambda: parts.__setitem__(slice(None), [p for i, p in enumerate(parts) if i != index])


def _leave_out(body: list[ast.stmt], index: int) -> Change:
    return lambda: body.__setitem__(index, ast.Pass())


def _does_something(part: ast.stmt) -> bool:
    if isinstance(part, ast.Expr):
        return not isinstance(part.value, ast.Constant)
    return isinstance(part, ast.AugAssign | ast.Assign | ast.AnnAssign)


# Living in a mutant.


@contextmanager
def alive(module: ModuleType, mutant: Mutant) -> Iterator[None]:
    """Let the functions of a module be those of a mutant."""
    found = _function(module, mutant.where)
    before = found.__code__
    found.__code__ = _code(compile(mutant.tree, f"<{mutant}>", "exec"), mutant.where.split("."))
    try:
        yield
    finally:
        found.__code__ = before


def _function(module: ModuleType, where: str) -> FunctionType:
    found: object = module
    for name in where.split("."):
        found = inspect.getattr_static(found, name)
    found = found.fget if isinstance(found, property) else found
    assert isinstance(found, FunctionType)
    return found


def _code(code: CodeType, names: list[str]) -> CodeType:
    inner = next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == names[0])
    return _code(inner, names[1:]) if names[1:] else inner
