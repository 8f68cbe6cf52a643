"""Walk workflow code from its roots through every call to a function of the same module, and apply the rules."""

import ast
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from resurgam.lint import durable, order, roots, sharing
from resurgam.lint.finding import Finding, Step
from resurgam.lint.names import UNKNOWN, Names, is_module_level
from resurgam.lint.scopes import FUNCTIONS, Scope, Scopes, parameters
from resurgam.runtime.loop import forbidden
from resurgam.runtime.loop.forbidden import Rule

_TAKES_FUNCTION: Final = frozenset(
    {
        *("builtins.map", "builtins.filter", "builtins.sorted", "builtins.min", "builtins.max", "functools.reduce"),
        *("itertools.groupby", "itertools.takewhile", "itertools.dropwhile", "itertools.accumulate"),
    }
)


@dataclass(frozen=True, slots=True)
class Visit:
    """A function to read as part of a workflow; *body* is the body of the loop that it runs in, if any."""

    function: Scope
    workflow: str
    steps: tuple[Step, ...] = ()
    body: Scope | None = None


class Walk:
    """Collect the findings of one module."""

    def __init__(self, tree: ast.Module, file: str, lines: list[str], package: str = "") -> None:
        self._file = file
        self._lines = lines
        self._scopes = Scopes(tree, package)
        self._names = Names(self._scopes)
        self._definitions = roots.find(tree, self._scopes, self._names)
        self._seen: set[tuple[Scope, Scope | None]] = set()
        self._waiting: deque[Visit] = deque()
        self.findings: dict[tuple[int, int, str], Finding] = {}

    @property
    def workflows(self) -> int:
        """How many workflows the module defines."""
        return len(self._definitions.workflows)

    def run(self) -> None:
        """Read every workflow and the functions it calls, nearest first, to report the shortest path to a finding."""
        for workflow in self._definitions.workflows:
            self._set_context(workflow)
        for workflow in self._definitions.workflows:
            self._waiting.append(Visit(workflow, _title(workflow)))
        while self._waiting:
            visit = self._waiting.popleft()
            if (visit.function, visit.body) not in self._seen:
                self._seen.add((visit.function, visit.body))
                for node in _own_nodes(visit.function.node):
                    self._check_node(node, visit)

    # The rules for one node.

    def _check_node(self, node: ast.AST, visit: Visit) -> None:
        scope = visit.function
        match node:
            case ast.Call():
                self._call(node, visit)
            case ast.Attribute(ctx=ast.Load()) | ast.Name(ctx=ast.Load()):
                name = self._names.resolve(node, scope)
                if (rule := forbidden.VALUES.get(name)) is not None:
                    self._add(rule, node, name, visit)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._handler(node, visit)
        for ordered in order.ordered_sets(node, self._names, scope, self._scopes.parents):
            self._add(forbidden.SETS, ordered, f"the order of {_text(ordered)}", visit)
        for change in sharing.changes(node, scope):
            if sharing.is_shared(change, self._names):
                self._add(forbidden.SHARED, change.node, f"a change of the module's {change.name!r}", visit)
            elif sharing.is_outer(change, visit.body, self._names):
                self._add(forbidden.OUTER, change.node, f"a change of {change.name!r} in the body of a loop", visit)

    def _call(self, call: ast.Call, visit: Visit) -> None:
        scope, name = visit.function, self._names.resolve(call.func, visit.function)
        rule = self._forbidden(call, name, scope)
        if rule is not None:
            self._add(rule, call, f"{_shown(name)}()", visit)
            return
        verb = durable.verb(call, self._names, scope)
        if verb is not None:
            self._verb(call, verb, visit)
            return
        for function in self._called(name):
            if function in self._definitions.activities:
                self._add(forbidden.DIRECT, call, f"{name.removeprefix('.')}()", visit)
            else:
                self._check_awaited(call, name, visit, durable_call=_is_plainly_async(function.node))
                self._follow(function, call.lineno, visit)
        self._check_default_factories(call, name, visit)
        self._follow_arguments(call, name, visit)

    def _forbidden(self, call: ast.Call, name: str, scope: Scope) -> Rule | None:
        if len(call.args) >= forbidden.NEEDS.get(name, len(call.args) + 1):
            return None
        if name.endswith(".run_in_executor"):
            return forbidden.THREADS
        holder = name.rpartition("().")[0]
        if holder in forbidden.HOLDERS and is_module_level(call.func, scope):
            return forbidden.find(holder)
        return forbidden.find(name)

    def _verb(self, call: ast.Call, verb: str, visit: Visit) -> None:
        if verb in durable.DURABLE or verb == "step":
            awaited = not durable.need_not_be_awaited(call)
            self._check_awaited(call, f"ctx.{verb}" if verb != "step" else "saga.step", visit, durable_call=awaited)
        for given in durable.functions(call, verb):
            function = self._function(given, visit.function)
            if function is None or function in self._definitions.activities:
                continue
            if verb != "until":
                self._set_context(function)
            body = function if verb == "loop" and not durable.is_endless(call) else visit.body
            self._follow(function, call.lineno, visit, body)

    def _check_awaited(self, call: ast.Call, name: str, visit: Visit, *, durable_call: bool) -> None:
        root = visit.function in self._definitions.workflows
        if durable_call and durable.is_dropped(call, self._scopes.parents, visit.function, workflow=root):
            self._add(forbidden.UNAWAITED, call, f"{name.removeprefix('.')}() without await", visit)

    def _check_default_factories(self, call: ast.Call, name: str, visit: Visit) -> None:
        """Check the default factories of fields that a call omits, as in ``field(default_factory=uuid4)``."""
        made = self._scopes.by_name.get(name)
        given = {keyword.arg for keyword in call.keywords}
        if made is None or not isinstance(made.node, ast.ClassDef) or None in given:
            return
        fields = [statement for statement in made.node.body if isinstance(statement, ast.AnnAssign)]
        inside = replace(visit, steps=(*visit.steps, Step(_title(made), _title(visit.function), call.lineno)))
        around = made.parent or made
        for declared in fields[len(call.args) :]:
            factory = _factory(declared)
            if factory is None or ast.unparse(declared.target) in given:
                continue
            factory_name = self._names.resolve(factory, around)
            if (rule := forbidden.find(factory_name)) is not None:
                self._add(rule, factory, f"{_shown(factory_name)}()", inside)
            elif (function := self._function(factory, around)) is not None:
                self._follow(function, declared.lineno, inside)

    # The functions to read next.

    def _called(self, name: str) -> Iterator[Scope]:
        """Yield the functions of this module that run when *name* is called."""
        function = self._names.function(name)
        if function is not None:
            yield function
        for method in ("__init__", "__post_init__"):
            made = self._names.of_class(name, method)
            if made is not None:
                yield made

    def _follow(self, function: Scope, line: int, visit: Visit, body: Scope | None = None) -> None:
        if isinstance(function.node, ast.Lambda):
            steps = visit.steps
        else:
            step = Step(_title(function), _title(visit.function), line)
            steps = (*visit.steps, step)
        self._waiting.append(Visit(function, visit.workflow, steps, body or visit.body))

    def _follow_arguments(self, call: ast.Call, name: str, visit: Visit) -> None:
        """Read the functions passed to a call that calls them, and every lambda."""
        given = (*call.args, *(keyword.value for keyword in call.keywords))
        for argument in given:
            if isinstance(argument, ast.Lambda) or name in _TAKES_FUNCTION:
                function = self._function(argument, visit.function)
                if function is not None and function not in self._definitions.activities:
                    self._follow(function, call.lineno, visit)

    def _function(self, node: ast.expr, scope: Scope) -> Scope | None:
        if isinstance(node, ast.Lambda):
            return self._scopes.by_node[node]
        if isinstance(node, ast.Call) and self._names.resolve(node.func, scope) == "functools.partial" and node.args:
            return self._function(node.args[0], scope)
        return self._names.function(self._names.resolve(node, scope))

    def _handler(self, node: ast.FunctionDef | ast.AsyncFunctionDef, visit: Visit) -> None:
        """Read a nested function that a decorator of the context registers as a handler."""
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call):
                verb = durable.verb(decorator, self._names, visit.function)
                if verb in durable.HANDLERS:
                    self._follow(self._scopes.by_node[node], node.lineno, visit)

    def _set_context(self, function: Scope) -> None:
        node = function.node
        first = next(parameters(node.args), None) if isinstance(node, FUNCTIONS) else None
        if first is not None and first.annotation is None and first.arg != "self":
            self._names.set_context(function, first.arg)

    # The findings.

    def _add(self, rule: Rule, node: ast.expr | ast.stmt, what: str, visit: Visit) -> None:
        if any(forbidden.allows(line, rule) for line in self._lines_of(node)):
            return
        key = (node.lineno, node.col_offset, rule.code)
        if key not in self.findings:
            self.findings[key] = Finding(
                rule, self._file, node.lineno, node.col_offset + 1, what, visit.workflow, visit.steps
            )

    def _lines_of(self, node: ast.expr | ast.stmt) -> Iterator[str]:
        """Yield the lines whose comments apply to a node: its own, and the line above if it is only a comment."""
        yield from self._lines[node.lineno - 1 : node.end_lineno]
        if node.lineno > 1 and (above := self._lines[node.lineno - 2].strip()).startswith("#"):
            yield above


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run when a function runs, without those of nested functions and classes."""
    assert isinstance(function, FUNCTIONS)
    waiting: deque[ast.AST] = deque(function.body if isinstance(function.body, list) else [function.body])
    while waiting:
        node = waiting.popleft()
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting.extend((*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)))
        elif isinstance(node, ast.Lambda):
            waiting.extend((*node.args.defaults, *filter(None, node.args.kw_defaults)))
        else:
            waiting.extend(ast.iter_child_nodes(node))


def _is_plainly_async(function: ast.AST) -> bool:
    """Whether calling a function gives a coroutine; the result of a decorated one is not known."""
    return isinstance(function, ast.AsyncFunctionDef) and not function.decorator_list


def _factory(declared: ast.AnnAssign) -> ast.expr | None:
    keywords = declared.value.keywords if isinstance(declared.value, ast.Call) else []
    return next((keyword.value for keyword in keywords if keyword.arg == "default_factory"), None)


def _title(scope: Scope) -> str:
    return scope.name.rpartition(".")[2] if "<lambda" not in scope.name else "a lambda"


def _text(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _shown(name: str) -> str:
    return name.removeprefix("builtins.") if name != UNKNOWN else "it"
