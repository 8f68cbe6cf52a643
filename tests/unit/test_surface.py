"""The public surface: few names, each documented, and no import that is not needed."""

import ast
import inspect
import re
import sys
from pathlib import Path

import pytest

import resurgam
import resurgam.testing
from resurgam import errors, flows

PACKAGE = Path(resurgam.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))


def test_the_names_at_the_top_are_sorted_few_and_exactly_these():
    assert resurgam.__all__ == [
        "Break",
        "Context",
        "Continue",
        "Engine",
        "Event",
        "Handle",
        "Location",
        "NonRetryable",
        "Outbound",
        "Registry",
        "Retain",
        "RetryAfter",
        "RetryPolicy",
        "SignalTimeout",
        "Status",
        "SyncEngine",
        "SyncHandle",
        "UpdateHandle",
        "activity",
        "errors",
        "workflow",
    ]


def test_the_names_of_goal_flows_are_sorted_and_exactly_these():
    assert flows.__all__ == [
        *(
            "Catalog",
            "Const",
            "ExpressionFailed",
            "FlowStep",
            "HttpStep",
            "Input",
            "Meta",
            "Plan",
            "ScriptStep",
            "Step",
        ),
        *("StepDecorator", "WorkflowStep", "plan", "step"),
    ]


@pytest.mark.parametrize("module", [resurgam, resurgam.testing, errors, flows], ids=lambda module: module.__name__)
def test_every_public_name_has_a_docstring(module):
    undocumented = [name for name in module.__all__ if not inspect.getdoc(getattr(module, name))]

    assert undocumented == []


def test_the_error_tree_is_drawn_as_it_is():
    """The tree in the docstring names every error, under the one it derives from."""
    drawn = re.findall(r"^ {4}([│├└─ ]*)([A-Z]\w+)", sys.modules["resurgam.core.errors"].__doc__ or "", re.MULTILINE)
    parents: dict[str, str] = {}
    above: list[str] = []
    for branch, name in drawn:
        depth = len(branch) // 4
        above = [*above[:depth], name]
        if depth:
            parents[name] = above[depth - 1]

    for name in errors.__all__:
        if name != "ResurgamError":
            assert parents[name] in {base.__name__ for base in getattr(errors, name).__mro__}, name


@pytest.mark.parametrize(
    ("package", "besides"), [(resurgam, {"errors": "resurgam"}), (flows, {})], ids=["resurgam", "flows"]
)
def test_names_are_imported_from_where_static_checkers_see_them(package, besides):
    [block] = [node for node in ast.parse(Path(package.__file__).read_text()).body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.name: f"{node.module}" for node in imports for alias in node.names}

    assert seen == package._MODULES | besides
    assert sorted(seen) == package.__all__


@pytest.mark.parametrize("package", [resurgam, flows], ids=["resurgam", "flows"])
def test_every_public_name_is_listed_and_found(package):
    found = {}
    exec(f"from {package.__name__} import *", found)

    assert set(package.__all__) <= set(dir(package))
    assert {name: found[name] for name in package.__all__} == {n: getattr(package, n) for n in package.__all__}


@pytest.mark.parametrize("package", [resurgam, flows], ids=["resurgam", "flows"])
def test_a_name_that_does_not_exist_is_an_attribute_error(package):
    with pytest.raises(AttributeError, match=f"^module '{package.__name__}' has no attribute 'Enigne'$"):
        _ = package.Enigne


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_and_functions_stay_within_their_limits(source):
    text = source.read_text()
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = [f.name for f in functions if (f.end_lineno or 0) - f.body[0].lineno + 1 > 40]

    assert len(text.splitlines()) <= 700
    assert long == []


def test_what_every_worker_imports_defines_no_dataclass():
    """A dataclass is compiled at every start; a struct is not."""
    packages = ("core", "runtime", "store", "worker", "client")
    found = {
        node.name
        for source in SOURCES
        if source.relative_to(PACKAGE).parts[0] in packages
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(mark) for mark in node.decorator_list)
    }

    assert found <= {"HeldInstance"}


def test_names_in_backticks_in_docstrings_exist():
    """What a docstring refers to in single backticks is a name of the package or of what it speaks of."""
    known = {"asyncio", "time", "random", "logging", "pytest", "msgspec"} | set(dir(__builtins__))
    for source in SOURCES:
        known |= set(re.findall(r"\b[A-Za-z_]\w*\b", re.sub(r"`[^`]*`", "", source.read_text())))

    missing = []
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                doc = re.sub(r"``.*?``", "", ast.get_docstring(node) or "", flags=re.DOTALL)
                for name in re.findall(r"`([A-Za-z_][\w.]*)`", doc):
                    if not set(name.split(".")) <= known:
                        missing.append(f"{source.name}: {name}")

    assert missing == []
