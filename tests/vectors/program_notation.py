"""Programs as data: a workflow is a list of calls, so that a test can run it, and can edit it.

Words stand for the simple calls::

    a          the activity a                  ~sleep     ctx.sleep
    x@2        the same by ctx.v(2)            ~listen    ctx.listen("go")
    -b         ctx.removed.activity("b")       ~wait      ctx.listen("go", timeout=...)
    -~loop     ctx.removed.loop()              ~set ~run  ctx.set("k", ...), ctx.run(...)

Calls that hold calls are made by the functions below.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from resurgam.core.edit import Check, Edit, Insert, Remove


@dataclass(frozen=True)
class Call:
    """One durable call. *version* is what ``ctx.v`` is given, *parts* are the calls inside it."""

    verb: str
    name: str | None = None
    version: int | None = None
    parts: tuple["Program", ...] = ()
    number: int = 0
    stop_in: int = 0
    arms: tuple[int, ...] = field(default=())


Program: TypeAlias = tuple[Call, ...]
Path: TypeAlias = tuple[int, ...]
"""Where a call stands: its index, then in turn the part of that call and the index in it."""

SPELLED = {"sleep": None, "listen": "go", "wait": "go", "set": "k", "run": "r"}


def word(text: str) -> Call:
    """Return the call that a word stands for."""
    text, _, version = text.partition("@")
    gone = text.startswith("-")
    text = text.removeprefix("-")
    verb, name = (text[1:], SPELLED.get(text[1:])) if text.startswith("~") else ("activity", text)
    if gone:
        return removed("listen" if verb == "wait" else verb, name)
    return Call(verb, name, int(version) if version else None)


def program(*given: "str | Call | Program") -> Program:
    """Return the calls of words and calls, in their order."""
    calls: list[Call] = []
    for part in given:
        if isinstance(part, str):
            calls += map(word, part.split())
        elif isinstance(part, Call):
            calls.append(part)
        else:
            calls += part
    return tuple(calls)


def removed(verb: str, name: str | None = None) -> Call:
    """Return the note of a call that is gone."""
    return Call("removed", name, parts=((Call(verb),),))


def branch(*given: "str | Call", v: int | None = None, name: str | None = None) -> Call:
    """Return a branch."""
    return Call("branch", name, v, (program(*given),))


def strand(*given: "str | Call", v: int | None = None) -> Call:
    """Return a coroutine that is made a task by its caller; its version comes by ``with ctx.v(n):``."""
    return Call("strand", None, v, (program(*given),))


def gather(*given: "str | Call") -> Call:
    """Return calls that are made at once and awaited together by asyncio.gather."""
    return Call("gather", parts=(program(*given),))


def task_group(*given: "str | Call") -> Call:
    """Return calls that are made at once and awaited together by an asyncio.TaskGroup."""
    return Call("task_group", parts=(program(*given),))


def loop(times: int, *given: "str | Call", v: int | None = None, stop_in: int = 0) -> Call:
    """Return a loop; the run stays where it is at the end of iteration *stop_in*."""
    return Call("loop", None, v, (program(*given),), number=times, stop_in=stop_in)


def check(number: int, arms: "Mapping[int, str | Program] | None" = None, *, name: str | None = None) -> Call:
    """Return a version check, and what is done for each answer."""
    arms = arms or {}
    parts = tuple(program(part) for part in arms.values())
    return Call("check", name, None, parts, number=number, arms=tuple(arms))


STOP = Call("stop")
"""The run stays here, and writes nothing."""


# Editing.


def at_path(calls: Program, path: Path, change: "Callable[[Program, int], Program]") -> Program:
    """Return the program with *change* made to the calls and the index that a path leads to."""
    if len(path) == 1:
        return change(calls, path[0])
    index, part, *rest = path
    call = calls[index]
    inside = at_path(call.parts[part], tuple(rest), change)
    parts = (*call.parts[:part], inside, *call.parts[part + 1 :])
    return (*calls[:index], replace(call, parts=parts), *calls[index + 1 :])


def edited(calls: Program, edits: "list[tuple[Path, Edit]]") -> Program:
    """Return the program with edits made where their paths lead."""
    moved = [(path if isinstance(edit, Insert) else _before_group(calls, path), edit) for path, edit in edits]
    # From the end, so that what is put in does not move what comes before; of one place the last said stands last.
    order = sorted(range(len(moved)), key=lambda index: (moved[index][0], index), reverse=True)
    for index in order:
        path, edit = moved[index]
        calls = at_path(calls, path, lambda inside, at, edit=edit: _changed(inside, at, edit))
    return calls


def _before_group(calls: Program, path: Path) -> Path:
    """Return where something is put that is to stand before the first of several calls that are made at once."""
    while len(path) > 1 and path[-1] == 0 and _at(calls, path[:-2]).verb in ("gather", "task_group"):
        path = path[:-2]
    return path


def _at(calls: Program, path: Path) -> Call:
    return calls[path[0]] if len(path) == 1 else _at(calls[path[0]].parts[path[1]], path[2:])


def _changed(calls: Program, index: int, edit: Edit) -> Program:
    if isinstance(edit, Insert):
        return (*calls[:index], replace(calls[index], version=edit.version), *calls[index + 1 :])
    if isinstance(edit, Remove):
        put = removed(edit.verb, edit.name)
    else:
        assert isinstance(edit, Check)
        put = check(edit.version, name=edit.name)
    return (*calls[:index], put, *calls[index:])
