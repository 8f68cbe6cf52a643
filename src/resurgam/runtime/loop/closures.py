"""Refuse functions that share mutable values with the code around them.

The body of a forgetting loop does not run again once its iterations are forgotten, and neither does a handler beside
such a loop. Their changes outside the durable state would be missing after a replay.
"""

import dis
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import msgspec

from resurgam.core.errors import DefinitionError, NotDeterministic
from resurgam.runtime.definitions.definition import Activity, Workflow

_REBINDING: Final = {"STORE_DEREF", "DELETE_DEREF", "STORE_GLOBAL", "DELETE_GLOBAL"}
_VALUES: Final = (str, bytes, int, float, complex, bool, type(None), type, ModuleType, Activity, Workflow)


def check_body(body: object) -> None:
    """Refuse a body that shares mutable values with code outside it: once forgotten, it does not run again."""
    if not callable(body):
        raise DefinitionError(f"the body of a loop must be an async function of (ctx, state), got {body!r}")
    shared = _shared(body, set())
    if shared:
        raise NotDeterministic(
            f"the body of this loop {shared}; finished iterations are forgotten and never run again, so pass it in the "
            "loop's state or store it with ctx.set and ctx.get, or give forget_every=None"
        )


def check_handler(handler: object, what: str) -> None:
    """Refuse a handler beside a forgetting loop if it shares mutable values with code outside it."""
    shared = _shared(handler, set())
    if shared:
        raise NotDeterministic(
            f"the handler of {what} {shared}; beside a forgetting loop, handlers are forgotten too and never run again, so "
            "store it with ctx.set and ctx.get, or give the loop forget_every=None"
        )


def _shared(value: object, seen: set[int]) -> str:
    """Describe the first shared mutable value, as a predicate of "the body"; empty if there is none."""
    if id(value) in seen:
        return ""
    seen.add(id(value))
    if isinstance(value, MethodType):
        return f"is a method of {_name(value.__self__)}, which can change"
    if isinstance(value, partial):
        parts = (value.func, *value.args, *value.keywords.values())
        return next(filter(None, (_shared_value("an argument of its partial", part, seen) for part in parts)), "")
    if not isinstance(value, FunctionType):
        return ""
    rebound = _rebound(value.__code__)
    if rebound:
        return f"rebinds the outer variable {rebound!r}"
    return next(filter(None, (_shared_value(repr(name), held, seen) for name, held in _held(value))), "")


def _held(function: FunctionType) -> list[tuple[str, object]]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    held = [(name, cell.cell_contents) for name, cell in cells if _is_set(cell)]
    return [*held, *(("a default argument", value) for value in function.__defaults__ or ())]


def _is_set(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 -- an empty cell raises
    except ValueError:
        return False
    return True


def _shared_value(name: str, value: object, seen: set[int]) -> str:
    if isinstance(value, FunctionType | MethodType | partial):
        return _shared(value, seen)
    if _is_constant(value):
        return ""
    return f"closes over {name}, {_name(value)}, which can change"


def _is_constant(value: object) -> bool:
    if isinstance(value, _VALUES) or type(value).__module__ in ("datetime", "decimal", "uuid", "enum", "re"):
        return True
    if isinstance(value, tuple | frozenset):
        return all(map(_is_constant, value))
    if isinstance(value, msgspec.Struct):
        return value.__struct_config__.frozen
    parameters = getattr(type(value), "__dataclass_params__", None)
    if parameters is not None and parameters.frozen:
        return True
    # The context itself, which is durable; and members of enumerations.
    return callable(getattr(type(value), "check_version", None)) or hasattr(type(value), "__members__")


def _rebound(code: CodeType) -> str:
    """Return the first outer variable that the code, or a function inside it, rebinds."""
    own = set(code.co_cellvars)
    for step in dis.get_instructions(code):
        if step.opname in _REBINDING and step.argval not in own:
            return str(step.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            rebound = _rebound(constant)
            if rebound and rebound not in own:
                return rebound
    return ""


def _name(value: object) -> str:
    return f"a {type(value).__name__}"
