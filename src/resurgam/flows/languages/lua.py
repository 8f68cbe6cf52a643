"""Lua in a sandbox: scripts have no way out, and limits on steps, time and memory.

Every evaluation has a Lua state of its own. That costs a fraction of a millisecond, and what a script does to its state
cannot reach another.
"""

import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

from lupa.lua54 import LuaError, LuaMemoryError, LuaRuntime, LuaSyntaxError, lua_type

from resurgam.flows.errors import ExpressionFailed
from resurgam.flows.languages.compiled import Compiled

MAX_STEPS: Final = 5_000_000
"""Instructions of the Lua machine."""
MAX_SECONDS: Final = 1.0
MAX_MEMORY: Final = 32 * 1024 * 1024
_HOOK_EVERY: Final = 100
_MAX_PATTERN_WORK: Final = 1e8
_MAX_DEPTH: Final = 100
"""Levels of nesting in a result; a table that contains itself has more."""

_SANDBOX: Final = files("resurgam.flows.languages").joinpath("sandbox.lua").read_text()


class _LuaScript:
    def __init__(self, text: str, parameters: Sequence[str]) -> None:
        self._text = text
        self._parameters = tuple(sorted(parameters))

    def evaluate(self, values: Mapping[str, object]) -> Any:
        state = _State()
        try:
            return state.run(self._text, [values.get(name) for name in self._parameters])
        except LuaMemoryError:
            raise ExpressionFailed(f"the script exceeded {MAX_MEMORY // 1024 // 1024} MB of memory") from None
        except (LuaError, OverflowError, UnicodeDecodeError, RecursionError) as error:
            raise ExpressionFailed(_message(error)) from None


def compile_lua(script: str, parameters: Sequence[str]) -> Compiled:
    """Compile a script; its parameters are passed by position, in the order of their names.

    A single expression needs no ``return``.
    """
    names = ", ".join(sorted(parameters))
    problems: list[str] = []
    for body in (f"return {script}", script):
        text = f"local {names} = ...; {body}" if names else body
        try:
            _State().check(text)
        except (LuaSyntaxError, LuaError) as error:
            problems.append(_message(error))
        else:
            return _LuaScript(text, parameters)
    raise ExpressionFailed(f"{script[:80]!r} is no Lua script: {problems[-1]}")


class _State:
    """One Lua state."""

    def __init__(self) -> None:
        self._lua = LuaRuntime(
            unpack_returned_tuples=True,
            register_eval=False,
            register_builtins=False,
            attribute_filter=_refuse,
            max_memory=MAX_MEMORY,
        )
        build = self._lua.eval(f"function(...) {_SANDBOX} end")
        made = build(MAX_STEPS, MAX_SECONDS, _HOOK_EVERY, _MAX_PATTERN_WORK)
        self._compile, self._run, self._as_array, self._is_array, self._null, self._is_null, self._unhook = made

    def check(self, text: str) -> None:
        """Raise `LuaError` if a script cannot be compiled."""
        chunk = self._compile(text, "=script")
        if isinstance(chunk, tuple):
            raise LuaError(chunk[1])

    def run(self, text: str, arguments: Sequence[object]) -> Any:
        """Run a script; return its first result as plain JSON."""
        passed = [self._inside(argument, nested=False) for argument in arguments]
        try:
            result = self._run(text, "=script", *passed)
        finally:
            self._unhook()
        return self._outside(result[0] if isinstance(result, tuple) else result, 0)

    def _inside(self, value: object, *, nested: bool) -> Any:
        """Return a copy of a JSON value as Lua has it."""
        if isinstance(value, list):
            return self._as_array(self._lua.table(*(self._inside(one, nested=True) for one in value)))
        if isinstance(value, dict):
            table = self._lua.table()
            for key, one in value.items():
                table[key] = self._inside(one, nested=False)
            return table
        return self._null if value is None and nested else value

    def _outside(self, value: Any, depth: int) -> Any:
        """Return a copy of a Lua value as JSON has it."""
        if depth > _MAX_DEPTH:
            raise ExpressionFailed(f"the result is nested more than {_MAX_DEPTH} levels deep")
        if isinstance(value, str | bool | int | None):
            return value
        if isinstance(value, float):
            if not math.isfinite(value):
                raise ExpressionFailed(f"the result has {value}, which is no JSON number")
            return value
        if lua_type(value) != "table":
            raise ExpressionFailed(
                f"the result has a {lua_type(value) or type(value).__name__}, which is no JSON value"
            )
        if self._is_null(value):
            return None
        items = [(key, self._outside(one, depth + 1)) for key, one in value.items()]
        if self._is_array(value) or (
            items and sorted(key for key, _ in items if isinstance(key, int)) == list(range(1, len(items) + 1))
        ):
            return [one for _, one in sorted(items, key=lambda item: item[0])]
        if not all(isinstance(key, str) for key, _ in items):
            raise ExpressionFailed("a table of the result has keys that are no text, and is no list from 1 on")
        return dict(items)


def _refuse(owner: object, name: object, is_setting: bool) -> object:  # noqa: FBT001 -- called by lupa
    raise AttributeError("objects of Python are not for scripts")


def _message(error: Exception) -> str:
    return str(error).partition("\n")[0] or "the script raised an error without a text"
