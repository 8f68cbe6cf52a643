"""Lua in a sandbox: scripts have no way out, and limits on steps, time and memory.

Every evaluation has a Lua state of its own. That costs a fraction of a millisecond, and what a script does to its state
cannot reach another.
"""

import time
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

from lupa.lua54 import LuaError, LuaMemoryError, LuaRuntime, LuaSyntaxError, lua_type

from resurgam.flows.errors import ExpressionFailed
from resurgam.flows.languages.compiled import Compiled
from resurgam.flows.languages.limits import MAX_DEPTH, Measure, check_script, first_line

MAX_STEPS: Final = 5_000_000
"""Instructions of the Lua machine."""
MAX_SECONDS: Final = 1.0
"""Seconds of one thread."""
MAX_MEMORY: Final = 32 * 1024 * 1024
MAX_ARGUMENTS: Final = 16 * 1024 * 1024
"""Bytes that the arguments may take of it."""
_HOOK_EVERY: Final = 100
_MAX_SEARCH: Final = 1e8
"""Positions that one search with a pattern may look at."""
_INTEGERS: Final = range(-(2**63), 2**63)
_KEYWORDS: Final = frozenset(
    [
        "and",
        "break",
        "do",
        "else",
        "elseif",
        "end",
        "false",
        "for",
        "function",
        "goto",
        "if",
        "in",
        "local",
        "nil",
        "not",
        "or",
        "repeat",
        "return",
        "then",
        "true",
        "until",
        "while",
    ]
)

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
        except UnicodeDecodeError:
            raise ExpressionFailed("the result, or the error, has text that is no UTF-8") from None
        except LuaError as error:
            raise ExpressionFailed(_message(error)) from None


def compile_lua(script: str, parameters: Sequence[str]) -> Compiled:
    """Compile a script; its parameters are passed by position, in the order of their names.

    A single expression needs no ``return``.
    """
    check_script(script)
    for name in parameters:
        if not name.isidentifier() or not name.isascii() or name in _KEYWORDS:
            raise ExpressionFailed(f"{name!r} is no name in Lua; give it another inside the step, by a mapping")
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
        # Memory is limited only while a script runs: outside of a call Lua can raise no error, and ends the process.
        self._lua = LuaRuntime(
            unpack_returned_tuples=True,
            register_eval=False,
            register_builtins=False,
            attribute_filter=_refuse,
            max_memory=0,
        )
        build = self._lua.eval(f"function(...) {_SANDBOX} end")
        made = build(MAX_STEPS, MAX_SECONDS, _HOOK_EVERY, _MAX_SEARCH, time.thread_time)
        self._compile, self._run, self._as_array, self._is_array, self._null, self._is_null, self._unhook = made
        self._measure = Measure()

    def check(self, text: str) -> None:
        """Raise `LuaError` if a script cannot be compiled."""
        chunk = self._compile(text, "=script")
        if isinstance(chunk, tuple):
            raise LuaError(chunk[1])

    def run(self, text: str, arguments: Sequence[object]) -> Any:
        """Run a script; return its first result as plain JSON."""
        before = self._lua.get_memory_used()
        passed = self._lua.table(*(self._inside(argument, 0, nested=False) for argument in arguments))
        if self._lua.get_memory_used() - before > MAX_ARGUMENTS:
            raise ExpressionFailed(f"the arguments of a script take at most {MAX_ARGUMENTS // 1024 // 1024} MB")
        self._lua.set_max_memory(MAX_MEMORY)
        try:
            result = self._run(text, "=script", passed, len(arguments))
        finally:
            self._lua.set_max_memory(0)
            self._unhook()
        return self._outside(result[0] if isinstance(result, tuple) else result, 0)

    def _inside(self, value: object, depth: int, *, nested: bool) -> Any:
        """Return a copy of a JSON value as Lua has it."""
        if depth > MAX_DEPTH:
            raise ExpressionFailed(f"an argument is nested more than {MAX_DEPTH} levels deep")
        if isinstance(value, list):
            return self._as_array(self._lua.table(*(self._inside(one, depth + 1, nested=True) for one in value)))
        if isinstance(value, dict):
            table = self._lua.table()
            for key, one in value.items():
                table[key] = self._inside(one, depth + 1, nested=False)
            return table
        if isinstance(value, int) and value not in _INTEGERS:
            raise ExpressionFailed(
                "an argument has an integer of more than 64 bits, which Lua has not; pass it as text"
            )
        return self._null if value is None and nested else value

    def _outside(self, value: Any, depth: int) -> Any:
        """Return a copy of a Lua value as JSON has it."""
        self._measure.add(value, depth)
        if isinstance(value, str | bool | int | float | None):
            return value
        if lua_type(value) != "table":
            raise ExpressionFailed(
                f"the result has a {lua_type(value) or type(value).__name__}, which is no JSON value"
            )
        if self._is_null(value):
            return None
        items = {key: self._outside(one, depth + 1) for key, one in value.items()}
        if self._is_array(value) or (items and all(type(key) is int for key in items)):
            return _as_list(items)
        for key in items:
            if not isinstance(key, str):
                raise ExpressionFailed("a table of the result has keys that are no text, and is no list from 1 on")
            self._measure.add(key, depth)
        return items


def _as_list(items: Mapping[object, Any]) -> list[Any]:
    try:
        return [items[number] for number in range(1, len(items) + 1)]
    except KeyError:
        raise ExpressionFailed(
            "a list of the result has a hole, or keys that are no numbers from 1 on; use `null` for a missing element"
        ) from None


def _refuse(owner: object, name: object, is_setting: bool) -> object:  # noqa: FBT001 -- called by lupa
    raise AttributeError("objects of Python are not for scripts")


def _message(error: Exception) -> str:
    said = first_line(error)
    # The text of an error that is no text is the place of a table in memory.
    return "the script raised an error without a text" if not said or said.startswith("<Lua ") else said
