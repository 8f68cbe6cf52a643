"""From a module to a report: what a finding says, how modules are found, and that our own code has no findings."""

from pathlib import Path
from textwrap import dedent

import pytest

import resurgam
from resurgam.core.errors import NotDeterministic
from resurgam.lint import registered
from resurgam.lint.check import Unreadable, check, check_file, check_source
from resurgam.lint.finding import Step
from resurgam.runtime.context.context import Context
from resurgam.runtime.loop.forbidden import RULES
from resurgam.runtime.registry import Registry

ROOT = Path(__file__).parents[3]
PACKAGE = Path(resurgam.__file__).parent
OURS = [*sorted((ROOT / "examples").glob("*.py")), PACKAGE / "cli/demo_shop.py", PACKAGE / "bench/programs.py"]
SHOP = """
    import time
    from resurgam import workflow

    def inner():
        return time.time()

    def helper():
        return inner()

    @workflow
    async def checkout(ctx):
        return helper()

    @workflow
    async def refund(ctx):
        return inner()
"""


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_our_own_workflows_have_no_findings(path):
    report = check_file(path)

    assert report.findings == ()
    assert report.workflows >= 1 or "@workflow" not in path.read_text()  # an example of flows may have none


def test_the_code_blocks_of_the_readme_have_no_findings():
    blocks = (ROOT / "README.md").read_text().split("```python\n")[1:]
    reports = [check_source(block.partition("```")[0].encode(), "README.md") for block in blocks]

    assert [(report.findings, report.workflows) for report in reports] == [((), 1), ((), 1), ((), 2)]


def test_a_finding_tells_the_nearest_way_to_it():
    report = check_source(dedent(SHOP).encode(), "shop.py")

    [finding] = report.findings
    assert report.workflows == 2
    assert finding.workflow == "refund"
    assert str(finding) == (
        "shop.py:6:12: RS101 clock: time.time() in workflow refund (in inner, called from refund at line 17): "
        "the time differs on replay; use ctx.now()"
    )


def test_a_longer_way_is_told_from_the_inside():
    report = check_source(dedent(SHOP).partition("@workflow\nasync def refund")[0].encode(), "shop.py")

    [finding] = report.findings
    assert finding.path == "in inner, called from helper at line 9, called from checkout at line 13"
    assert finding.steps == (Step("helper", "checkout", 13), Step("inner", "helper", 9))


def test_findings_stand_in_the_order_of_the_source():
    source = b"import time\nfrom resurgam import workflow\ndef a(): time.time()\n@workflow\nasync def w(ctx): time.time(), a()"

    assert [(f.line, f.column) for f in check_source(source, "shop.py").findings] == [(3, 10), (5, 19)]


def test_a_module_is_found_by_its_name_and_not_imported(tmp_path, monkeypatch):
    (tmp_path / "shop_of_lint").mkdir()
    (tmp_path / "shop_of_lint/__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "shop_of_lint/flows.py").write_text("raise RuntimeError('imported')" + dedent(SHOP))
    monkeypatch.chdir(tmp_path)

    assert check("shop_of_lint.flows").workflows == 2
    assert check("shop_of_lint").workflows == 2
    assert check("shop_of_lint").findings == check("shop_of_lint.flows").findings
    assert check("shop_of_lint/flows.py").findings[0].file == "shop_of_lint/flows.py"


@pytest.mark.parametrize("module", ["no_such_module", "json.no_such_module", "no.such.module", "sys", "time", "..", ""])
def test_a_module_that_is_not_there(module):
    with pytest.raises(Unreadable, match="there is no module"):
        check(module)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"x = 1\ndef\n", "shop.py:2: def: invalid syntax"),
        (b"# coding: nonsense\n", "shop.py:1: unknown encoding: nonsense"),
        (b"x = '\xff'\n", "shop.py:1: "),
        (b"x = 1\0\n", "shop.py"),
    ],
)
def test_what_is_no_python_is_refused_with_its_place(source, message):
    with pytest.raises(Unreadable) as found:
        check_source(source, "shop.py")

    assert str(found.value).startswith(message)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(Unreadable, match="Is a directory"):
        check_file(tmp_path)


def test_a_relative_import_is_what_it_names(tmp_path, monkeypatch):
    (tmp_path / "resurgam_shop").mkdir()
    (tmp_path / "resurgam_shop/flows.py").write_text(
        "from .app import registry\nimport time\n@registry.workflow\nasync def w(ctx): time.time()\n"
    )
    monkeypatch.chdir(tmp_path)

    assert len(check("resurgam_shop.flows").findings) == 1


@pytest.mark.parametrize(
    ("imports", "call"),
    [
        ("import time", "time.time()"),
        ("from time import *", "time()"),
        ("from datetime import *", "datetime.now()"),
        ("from os import *", "getenv('A')"),
        ("from pathlib import *", "Path('a').read_text()"),
    ],
)
def test_what_a_star_brings_is_known(imports, call):
    source = f"from resurgam import *\n{imports}\n@workflow\nasync def w(ctx: Context): {call}\n"

    report = check_source(source.encode(), "shop.py")

    assert (report.workflows, [finding.line for finding in report.findings]) == (1, [4])


def test_a_star_hides_nothing_that_the_module_defines():
    source = b"from time import *\nfrom resurgam import *\ndef time(): ...\n@workflow\nasync def w(ctx): time()\n"

    assert check_source(source, "shop.py").findings == ()


def test_every_rule_has_its_own_code_and_word():
    assert len({rule.word for rule in RULES.values()}) == len(RULES)
    assert all(code == rule.code and rule.remedy and rule.reason for code, rule in RULES.items())


@pytest.mark.parametrize("source", [b"x = " + b"-" * 100_000 + b"1", b"x = 1" + b" + 1" * 5000], ids=["parser", "walk"])
def test_a_program_that_is_nested_too_deeply_is_refused(source):
    with pytest.raises(Unreadable, match=r"shop\.py: an expression is nested too deeply"):
        check_source(source, "shop.py")


registry = Registry()


@registry.workflow
async def over_a_set(ctx: Context, tags: set[str]) -> None:
    for _ in tags:
        raise NotDeterministic


def test_what_is_seen_in_the_source_only_is_logged_for_registered_workflows(caplog):
    registered.warn(registry.workflows)

    [record] = caplog.records
    assert f"{__file__}:" in record.getMessage()
    assert "RS201 sets: the order of tags in workflow over_a_set" in record.getMessage()


def test_a_source_that_cannot_be_read_is_said(caplog, tmp_path):
    path = tmp_path / "gone.py"
    path.write_text("async def changed(ctx): pass")
    names: dict[str, object] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    made = Registry()
    made.workflow(names["changed"])
    path.write_text("def")
    registered.warn(made.workflows)

    assert [record.getMessage() for record in caplog.records] == [f"{path}:1: def: invalid syntax"]


def test_workflows_without_a_source_are_passed_over(caplog):
    made = Registry()
    names: dict[str, object] = {}
    exec("async def typed_in(ctx): pass", names)
    made.workflow(names["typed_in"])
    registered.warn([*made.workflows, made.workflow.ref("elsewhere")])

    assert caplog.records == []
