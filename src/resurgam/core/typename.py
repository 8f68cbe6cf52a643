"""Map types to their recorded names, and recorded names to types.

A program run as a script is the module ``__main__`` in its own process, and has another name where a worker imports it.
Types are recorded under the importable name, so that either process finds its own class. No module is imported: reading
a history must not run code.
"""

import sys
from collections.abc import Iterator
from pathlib import PurePath
from types import ModuleType

_MAIN = ("__main__", "__mp_main__")
"""Names of the script's module; the second is used in processes started by multiprocessing."""


def type_name(kind: type) -> str:
    """Return the full name under which a type is recorded."""
    module = kind.__module__
    if module in _MAIN:
        module = _importable(sys.modules.get(module)) or "__main__"
    return f"{module}.{kind.__qualname__}"


def find_type(name: str) -> type | None:
    """Return the type recorded under *name*, or None if its module is not imported."""
    parts = name.split(".")
    for split in range(len(parts) - 1, 0, -1):
        for module in _modules(".".join(parts[:split])):
            found: object = module
            for part in parts[split:]:
                # Not getattr: a module's __getattr__ may import other modules.
                found = getattr(found, "__dict__", {}).get(part)
            if isinstance(found, type):
                return found
    return None


def _modules(name: str) -> Iterator[ModuleType]:
    main, named = sys.modules.get("__main__"), sys.modules.get(name)
    if main is not None and _is_script(main, name):
        yield main
    if named is not None:
        yield named


def _importable(main: ModuleType | None) -> str | None:
    """Return the name under which another process imports a main program, or None."""
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return str(spec.name)
    return PurePath(file).stem if isinstance(file, str) and file.endswith(".py") else None


def _is_script(main: ModuleType, name: str) -> bool:
    """Whether other processes import a main program as *name*, perhaps from a parent folder."""
    if _importable(main) == name:
        return True
    file, parts = getattr(main, "__file__", None), name.split(".")
    if getattr(main, "__spec__", None) is not None or not isinstance(file, str) or not file.endswith(".py"):
        return False
    return PurePath(file).with_suffix("").parts[-len(parts) :] == tuple(parts)
