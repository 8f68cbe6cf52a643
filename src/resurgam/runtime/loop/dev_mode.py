"""Development mode (``RESURGAM_DEV=1``): refuse forbidden calls of workflow code when they happen.

The table of calls is `resurgam.runtime.loop.forbidden`. While a tick runs, a profile function sees every call of its
thread, including functions written in C; a forbidden one raises `NotDeterministic` before it happens. That is too slow
for production, so it is decided once, when this module is imported, and costs nothing otherwise.

A call is attributed to the workflow unless a frame between it and the user's code exempts it: importing a module,
reading source for a traceback or a time zone, and finalizers run by the garbage collector are allowed. So are the
packages listed in ``RESURGAM_DEV_ALLOW`` and their callees, except user code that they call back.
"""

import asyncio
import gc
import importlib
import linecache
import logging
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType
from typing import Any, Final, TypeAlias

from resurgam.core.errors import NotDeterministic
from resurgam.runtime.loop import forbidden
from resurgam.runtime.loop.forbidden import Rule

logger = logging.getLogger("resurgam.dev")

ON: Final = os.environ.get("RESURGAM_DEV", "0") not in ("", "0")

ALLOWED: Final = "RESURGAM_DEV_ALLOW"
"""The environment variable that lists packages whose calls are allowed, separated by commas."""

_OURS: Final = f"{Path(__file__).parents[2]}{os.sep}"
_STDLIB: Final = f"{Path(os.__file__).parent}{os.sep}"
_PACKAGES: Final = "-packages"
_HARMLESS: Final = ("importlib", "linecache", "zoneinfo", "weakref", "warnings", "traceback", "inspect", "encodings")
_NOT_THE_USERS: Final = ("<frozen importlib", *(f"{_STDLIB}{name}" for name in _HARMLESS))
_BY_PYTHON_ITSELF: Final = frozenset({"__del__", "__hash__"})
_Named: TypeAlias = tuple[str, Rule]


class WatchedTicks(set[int]):
    """The threads that are running workflow code; each adds and discards itself, and its calls in between are watched.

    If another profiler is set, it stays in place and no call is checked.
    """

    def add(self, thread: int, /) -> None:
        """Watch the calls of this thread."""
        super().add(thread)
        if sys.getprofile() is None:
            sys.setprofile(_watch)

    def discard(self, thread: object, /) -> None:
        """Watch them no longer."""
        super().discard(thread)
        if sys.getprofile() is _watch:
            sys.setprofile(None)


def _watch(frame: FrameType, event: str, argument: object) -> None:
    """Refuse a forbidden call that is about to happen; called by Python as the profile function."""
    if event == "c_call":
        found = _IN_C.get(argument) if type(argument) is BuiltinFunctionType else None
    elif event == "call":
        found = _IN_PYTHON.get(frame.f_code)
    else:
        return
    if found is None or (found[0] == "random.Random" and frame.f_locals.get("x") is not None):
        return  # with a seed it is deterministic
    try:
        _refuse(*found, frame if event == "c_call" else frame.f_back)
    except NotDeterministic:
        # Python removes a profile function that raises; restore it for the rest of the tick.
        asyncio.get_running_loop().call_soon(_restore_profile)
        raise


def _restore_profile() -> None:
    if sys.getprofile() is None:
        sys.setprofile(_watch)


def _refuse(name: str, rule: Rule, caller: FrameType | None) -> None:
    """Raise `NotDeterministic` if user code caused the call and no comment allows it."""
    frames = list(_frames(caller))
    if any(_is_harmless(frame.f_code) for frame in frames) or (_packages and _is_allowed(frames)):
        return
    if rule is forbidden.IDENTITY and (not frames or not _is_users(frames[0])):
        return
    while frames and _is_stdlib(frames[0]):
        code = frames.pop(0).f_code
        name, rule = _IN_PYTHON.get(code) or (_called_as(code, name), rule)
    if frames and not any(forbidden.allows(line, rule) for frame in frames for line in _lines(frame)):
        source = f"{frames[0].f_code.co_filename}:{frames[0].f_lineno}"
        what = "os.environ" if name == "os.environ" else f"{name.removeprefix('builtins.')}()"
        message = f"{source}: {rule.code} {rule.word}: {what} in workflow code: {rule.reason}; {rule.remedy}"
        if not _is_users(frames[0]):
            package = _module(frames[0]).partition(".")[0]
            message += f"; if the workflow's outcome does not depend on it, allow the package: {ALLOWED}={package}"
        raise NotDeterministic(message)


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames between a call and the engine's code, innermost first."""
    while frame is not None and not frame.f_code.co_filename.startswith(_OURS):
        yield frame
        frame = frame.f_back


def _is_harmless(code: CodeType) -> bool:
    if code.co_filename.startswith(_NOT_THE_USERS) or code.co_name in _BY_PYTHON_ITSELF:
        return True
    return any(getattr(callback, "__code__", None) is code for callback in gc.callbacks)


def _is_stdlib(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file.startswith("<frozen ") or (file.startswith(_STDLIB) and _PACKAGES not in file)


def _is_users(frame: FrameType) -> bool:
    return not _is_stdlib(frame) and _PACKAGES not in frame.f_code.co_filename


def _is_allowed(frames: Iterable[FrameType]) -> bool:
    """Whether an allowed package caused the call, with no user code in between."""
    for frame in frames:
        module = _module(frame)
        if any(module == package or module.startswith(f"{package}.") for package in _packages):
            return True
        if _is_users(frame):
            return False
    return False


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _called_as(code: CodeType, inner: str) -> str:
    """Return the name under which the user called a library function that made a forbidden call: ``Path.read_text``."""
    if code.co_qualname.startswith("Random."):
        return f"random.{code.co_name}"
    inner_is_clearer = "<" in code.co_qualname or code.co_qualname.startswith(("Mapping.", "MutableMapping."))
    return inner if inner_is_clearer else code.co_qualname


def _lines(frame: FrameType) -> Iterator[str]:
    """Yield the lines on which a comment may allow a call: the line itself, and a comment line directly above."""
    file, number = frame.f_code.co_filename, frame.f_lineno
    yield linecache.getline(file, number)
    if (above := linecache.getline(file, number - 1).strip()).startswith("#"):
        yield above


# The watched functions.


def _tables() -> tuple[dict[object, _Named], dict[CodeType, _Named]]:
    """Resolve the names of the table to functions of the standard library, where all other packages end up."""
    in_c: dict[object, _Named] = {}
    in_python: dict[CodeType, _Named] = {}
    for name, found in _functions():
        rule = forbidden.find(name)
        assert rule is not None
        if isinstance(found, BuiltinFunctionType):
            if name not in forbidden.NEEDS:  # the arguments of a C function are not visible
                in_c.setdefault(found, (name, rule))
        elif isinstance(found, FunctionType):
            in_python[found.__code__] = (name, rule)
        elif isinstance(found, type) and isinstance(begin := found.__dict__.get("__init__"), FunctionType):
            in_python[begin.__code__] = (name, rule)
    for method in ("__getitem__", "__setitem__", "__delitem__", "__iter__"):
        in_python[getattr(os._Environ, method).__code__] = ("os.environ", forbidden.ENVIRONMENT)
    in_python[logging.Logger._log.__code__] = ("logging.Logger.log", forbidden.OUTPUT)
    return in_c, in_python


def _functions() -> Iterator[tuple[str, object]]:
    for name in forbidden.CALLS:
        if "()" in name or name.partition(".")[0] not in sys.stdlib_module_names:
            continue
        module, _, attribute = name.rpartition(".")
        holder = _import(module)
        wanted = [attribute] if attribute != "*" else getattr(holder, "__all__", [])
        for one in wanted:
            found = getattr(holder, one, None)
            # Methods of the shared Random are watched on its C base below: ctx.random has the same methods.
            if not isinstance(found, MethodType):
                yield f"{module}.{one}", found
    yield "random.Random", random.Random
    shared = random.getrandbits.__self__  # type: ignore[attr-defined]
    for one in dir(shared):
        if isinstance(found := getattr(shared, one), BuiltinFunctionType) and not one.startswith("_"):
            yield f"random.{one}", found


def _import(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ImportError:
        module, _, attribute = name.rpartition(".")
        return getattr(_import(module), attribute) if module else None


_IN_C: Final[dict[object, _Named]] = {}
_IN_PYTHON: Final[dict[CodeType, _Named]] = {}


_packages: Final[set[str]] = set()


def read_packages(text: str) -> set[str]:
    """Parse a comma-separated list of packages."""
    names = {name.strip() for name in text.split(",")} - {""}
    if not all(part.isidentifier() for name in names for part in name.split(".")):
        raise ValueError(f"{ALLOWED} must be names of packages, separated by commas, got {text!r}")
    return names


def enable() -> WatchedTicks:
    """Fill the tables, and return the switch that turns watching on during ticks."""
    _packages.update(read_packages(os.environ.get(ALLOWED, "")))
    in_c, in_python = _tables()
    _IN_C.update(in_c)
    _IN_PYTHON.update(in_python)
    return WatchedTicks()


# Futures that are never awaited.


def warn_if_unawaited(durable: type[Any]) -> None:
    """Make the futures of durable calls log a warning when they are collected without ever having been awaited."""

    def observing(original: Callable[..., Any]) -> Callable[..., Any]:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            self.observed = True
            return original(self, *args, **kwargs)

        return method

    original_init = durable.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original_init(self, *args, **kwargs)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith(_OURS):
            frame = frame.f_back
        self.observed, self.source = False, "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"

    def warn(self: Any) -> None:
        missed = not getattr(self, "observed", True) and not self.cancelled()
        if missed and self._calls.reports_unawaited(settled=self.done()):
            rule, command = forbidden.UNAWAITED, self.command
            what = f"{command.command} ({command.name or command.type})"
            reason = f"{rule.reason}; {rule.remedy}"
            logger.warning("%s: %s %s: %s was never awaited: %s", self.source, rule.code, rule.word, what, reason)
        asyncio.Future.__del__(self)

    for name in ("__await__", "__iter__", "add_done_callback", "cancel", "result", "exception"):
        setattr(durable, name, observing(getattr(durable, name)))
    durable.__init__ = init
    durable.__del__ = warn
