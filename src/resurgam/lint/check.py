"""Lint a module, given by its name or by the path of its file."""

import ast
import importlib.machinery
import io
import sys
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from resurgam.lint.finding import Finding, Report
from resurgam.lint.walk import Walk

_TOO_DEEP = "an expression is nested too deeply to be parsed"


class Unreadable(Exception):
    """A module that does not exist, or is not Python."""


def check(module: str) -> Report:
    """Check a module: the path of a ``.py`` file, or a dotted name, searched in the current folder and ``sys.path``.

    Of a package, check every module.
    """
    if not module.endswith(".py"):
        reports = [check_file(path, name) for name, path in _locate(module)]
        findings = (finding for report in reports for finding in report.findings)
        return Report(tuple(findings), sum(report.workflows for report in reports))
    path = Path(module)
    if not path.is_file():
        raise Unreadable(f"there is no file {path.absolute()}")
    return check_file(path)


def check_file(path: Path, module: str = "") -> Report:
    """Check one file, without the modules that it imports."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror}") from error
    name = module.removesuffix(".__init__")
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    return check_source(source, str(path), package)


def check_source(source: bytes, file: str, package: str = "") -> Report:
    """Check Python source."""
    try:
        tree = ast.parse(source, file)
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        lines = source.decode(encoding).splitlines()
    except SyntaxError as error:
        text = (error.text or "").strip()
        raise Unreadable(f"{file}:{error.lineno or 1}: {f'{text}: ' if text else ''}{error.msg}") from error
    except ValueError as error:
        raise Unreadable(f"{file}: {error}") from error
    except (RecursionError, MemoryError) as error:
        raise Unreadable(f"{file}: {_TOO_DEEP}") from error
    try:
        walk = Walk(tree, file, lines, package)
        walk.run()
    except RecursionError as error:
        raise Unreadable(f"{file}: {_TOO_DEEP}") from error
    return Report(tuple(in_order(walk.findings.values())), walk.workflows)


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings in the order of the source."""
    return sorted(findings, key=lambda finding: (finding.file, finding.line, finding.column, finding.rule.code))


def _locate(module: str) -> Iterator[tuple[str, Path]]:
    """Find the files of a module without importing anything, not even its packages."""
    where: Sequence[str] | None = [str(Path.cwd()), *sys.path]
    spec = None
    parts = module.split(".")
    for number in range(len(parts)):
        spec = importlib.machinery.PathFinder.find_spec(".".join(parts[: number + 1]), where)
        if spec is None:
            break
        where = spec.submodule_search_locations
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise Unreadable(f"there is no module {module!r} in {Path.cwd()}")
    yield module, Path(spec.origin)
    for folder in where or ():
        for path in sorted(Path(folder).rglob("*.py")):
            if path != Path(spec.origin):
                yield ".".join((module, *path.relative_to(folder).with_suffix("").parts)), path
