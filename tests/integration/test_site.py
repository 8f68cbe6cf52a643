"""The site of the documentation: built without a warning, with every page, every public name and every verb."""

import inspect
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import reference
import resurgam
import resurgam.testing
from resurgam import errors, flows
from resurgam.core.event import AnyEvent
from support.limits import HANGS
from support.pages import DOCS, ROOT, page, pages

PROSE = [one for one in pages() if not one.name.startswith("reference/python/")]
TEXT = "\n".join(one.text for one in PROSE)
CONFIGURED = (ROOT / "mkdocs.yml").read_text()


def test_the_site_is_built_without_a_warning(tmp_path):
    """In a copy, so that the checkout stays as it is; the exit code is 1 if there is a warning."""
    shutil.copytree(DOCS, tmp_path / "docs")
    (tmp_path / "src").symlink_to(ROOT / "src")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    done = subprocess.run(
        [Path(sys.executable).with_name("zensical"), "build", "--strict"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    built = (tmp_path / "site/reference/python/engine.html").read_text()
    assert "another start raises" in built  # the docstring of `Engine.start`


def test_the_readme_links_the_documentation():
    assert "(docs/index.md)" in (ROOT / "README.md").read_text()


def test_generated_pages_and_drawings_are_up_to_date():
    stale = [path for path, text in reference.files().items() if (ROOT / path).read_text() != text]
    assert stale == [], "run: python tools/reference.py"


def test_the_navigation_has_every_page_once():
    listed = re.findall(r": (\S+\.md)$", CONFIGURED, re.MULTILINE)
    assert sorted(listed) == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


@pytest.mark.parametrize("module", [resurgam, flows, errors, resurgam.testing], ids=lambda module: module.__name__)
def test_every_public_name_is_in_the_python_reference(module):
    """By a directive that shows its docstring; a module is a page of its own."""
    shown = set(re.findall(r"^::: (\S+)$", "".join(one.text for one in pages()), re.MULTILINE))
    modules = {name for name in module.__all__ if inspect.ismodule(getattr(module, name))}
    assert {f"{module.__name__}.{name}" for name in set(module.__all__) - modules} <= shown
    assert all(any(one.startswith(f"resurgam.{name}.") for one in shown) for name in modules)


def test_every_directive_of_the_python_reference_names_what_exists():
    for one in re.findall(r"^::: (\S+)$", "".join(one.text for one in pages()), re.MULTILINE):
        module, _, name = one.rpartition(".")
        assert inspect.getdoc(getattr(import_module(module), name)), one


INTERNAL = {"archiver", "busy", "clock", "progress", "readable", "resting", "running", "store", "worker"}
"""Members of `Engine` for the other layers of the package."""


@pytest.mark.parametrize(
    ("owner", "prefix"),
    [(resurgam.Context, r"ctx\."), (resurgam.Engine, r"engine\."), (resurgam.Handle, r"(?:handle|h)\.")],
    ids=["Context", "Engine", "Handle"],
)
def test_every_verb_is_explained_outside_of_the_python_reference(owner, prefix):
    verbs = {name for name in dir(owner) if not name.startswith("_")} - INTERNAL
    missing = {verb for verb in verbs if not re.search(rf"{prefix}{verb}\b", TEXT)}
    assert missing == set()


def test_every_error_is_on_the_page_of_errors_with_a_remedy():
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", page("reference/errors").text, re.MULTILINE)
    names = [name for name, _ in rows]
    assert sorted(names) == sorted(set(errors.__all__) - {"ResurgamError"})


def test_every_event_is_on_the_page_of_events():
    shown = page("reference/events").text
    assert [kind for kind in AnyEvent.__args__ if f"`{kind.__struct_config__.tag}`" not in shown] == []


def test_every_parameter_of_the_engine_and_of_the_decorators_is_explained():
    parameters = {
        *inspect.signature(resurgam.Engine).parameters,
        *("matching", "on_divergence", "late_new", "orphans", "input_check", "retry", "timeout", "start_timeout"),
        *("heartbeat_timeout", "executor", "max_attempts", "initial_interval", "backoff", "max_interval", "jitter"),
        *("non_retryable", "redeliver"),
    }
    missing = {name for name in parameters if not re.search(rf"`[^`\n]*\b{name}\b[^`\n]*`|\b{name}=", TEXT)}
    assert missing == set()
