"""Import the user's module, given as a dotted name or as the path of a file."""

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

import click

from resurgam.cli.text import one_line

_PACKAGE = str(Path(__file__).parents[1])


def load_module(module: str) -> ModuleType:
    """Import the user's module; an error is one line with the place in its code."""
    try:
        if module.endswith(".py"):
            return _load_file(Path(module).absolute())
        sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(module)
    except click.ClickException:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            raise click.BadParameter(f"there is no module {module!r} in {Path.cwd()}", param_hint="MODULE") from error
        raise _import_error(module, error) from error
    except (Exception, SystemExit) as error:
        raise _import_error(module, error) from error


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise click.BadParameter(f"there is no file {path}", param_hint="MODULE")
    loaded = sys.modules.get(path.stem)
    if loaded is not None and getattr(loaded, "__file__", None) != str(path):
        raise click.BadParameter(f"{path}: Python has a module {path.stem!r}; rename the file", param_hint="MODULE")
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[path.stem] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _import_error(module: str, error: BaseException) -> click.ClickException:
    """Return the error of a module that fails on import, with the last line of the user's code."""
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [frame for frame in frames if not frame.filename.startswith((_PACKAGE, "<frozen"))]
    where = [f"{frame.filename}:{frame.lineno}: {frame.line}: " for frame in user_frames[-1:]]
    if isinstance(error, SyntaxError):
        where = [f"{error.filename}:{error.lineno}: {(error.text or '').strip()}: "]
    reason = error.msg if isinstance(error, SyntaxError) else str(error)
    return click.ClickException(one_line(f"cannot import {module}: {''.join(where)}{type(error).__name__}: {reason}"))
