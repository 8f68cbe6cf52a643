"""`resurgam check`: what it finds in the open runs of a store, what it says of it, and that it leaves all as it was."""

import asyncio
import os
import pty
import sqlite3
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import msgspec
import pytest
from click.testing import CliRunner, Result

from resurgam import Context, Engine, Registry
from resurgam.check import check as checking
from resurgam.cli.main import main
from resurgam.core import event as events
from resurgam.runtime.registry import default_registry
from resurgam.store import export
from support.check_project import HEAD, INSERTED, OLD, Project, check, last
from support.limits import HANGS

SRC = str(Path(__file__).parents[2] / "src")


@pytest.fixture
def shop(tmp_path, monkeypatch) -> Project:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RESURGAM_STORE", f"sqlite:///{tmp_path}/shop.db")
    monkeypatch.setattr(default_registry.workflows, "_known", {})
    monkeypatch.setattr(sys, "path", [*sys.path])
    return Project(tmp_path)


# What is found.


def test_code_that_fits(shop):
    shop.record(OLD, "o-1", "o-2")

    done = shop.check(OLD)

    assert (done.exit_code, done.stdout, done.stderr) == (0, "2 runs: 2 fit, 0 would diverge, 0 undecided\n", "")


def test_an_inserted_step_for_people(shop):
    shop.record(OLD, "o-1")

    done = shop.check(INSERTED)

    [file] = shop.folder.glob("checked_*.py")
    assert done.exit_code == 1
    assert done.stdout == dedent(f"""\
        w: 1 run would diverge: o-1
          Task(1) at {{2}} ({file}:5): the code has name 'c', entry 4 of the history has 'b'
          {file}:5: await ctx.activity("c", id)

              history of o-1         code
              {{1}}  v1  activity a    activity a
            > {{2}}  v1  activity b    activity c
              {{3}}  v1  listen go     activity b
                                     listen go

          remedy: write ctx.v(2).activity(c, ...) at {file}:5
                  tried: it fits with it

        1 run: 0 fit, 1 would diverge (1 finding), 0 undecided
        """)


EDITS = {
    "insert": (OLD, INSERTED, ["write ctx.v(2).activity(c, ...) at"]),
    "insert another kind": (
        OLD,
        OLD.replace('await ctx.activity("b"', 'await ctx.sleep(1)\nawait ctx.activity("b"'),
        ["write ctx.v(2).sleep(...) at"],
    ),
    "remove": (OLD, OLD.replace('await ctx.activity("a", id)', ""), ["put back await ctx.removed.activity('a')"]),
    "remove at the end": (
        'await ctx.activity("a", id)\nctx.set("k", 1)\nawait ctx.listen("go")',
        'await ctx.activity("a", id)\nawait ctx.listen("go")',
        ["put back await ctx.removed.set('k')"],
    ),
    "replace": (
        OLD,
        OLD.replace('"b"', '"d"'),
        ["write ctx.v(2).activity(d, ...) at", "put back await ctx.removed.activity('b') before"],
    ),
    "a version check is gone": (
        'await ctx.check_version(2)\nawait ctx.activity("a", id)\nawait ctx.listen("go")',
        'await ctx.activity("a", id)\nawait ctx.listen("go")',
        ["put back await ctx.check_version(2)"],
    ),
    "in a loop": (
        'for n in range(3):\n    await ctx.activity("a", id)\nawait ctx.listen("go")',
        'for n in range(3):\n    await ctx.activity("a", id)\n    await ctx.activity("b", id)\nawait ctx.listen("go")',
        ["write ctx.v(2).activity(b, ...) at"],
    ),
    "swapped": (
        'await ctx.activity("a", id)\nawait ctx.activity("b", id)\nawait ctx.activity("c", id)\nawait ctx.listen("x")',
        'await ctx.activity("b", id)\nawait ctx.activity("a", id)\nawait ctx.activity("c", id)\nawait ctx.listen("x")',
        [],
    ),
}


@pytest.mark.parametrize("kind", EDITS)
def test_each_kind_of_edit_has_its_remedy(shop, kind):
    before, after, expected = EDITS[kind]
    shop.record(before, "o-1")

    [finding] = (found := shop.document(after))["findings"]

    edits = finding["remedy"]["edits"]
    assert (found["diverge"], finding["outcome"], finding["ids"]) == (1, "diverges", ["o-1"])
    assert len(edits) == len(expected)
    assert all(edit["text"].startswith(text) for edit, text in zip(edits, expected, strict=True))
    assert finding["remedy"]["fits"] == bool(expected)
    if not expected:
        assert "no local edit fits" in shop.check(after).stdout


def test_code_that_ends_early_is_shown_with_where_it_begins(shop):
    shop.record(OLD, "o-1")

    [finding] = shop.document('await ctx.activity("a", id)')["findings"]

    assert (finding["field"], finding["source"]["text"]) == (
        "end",
        "async def w(ctx: Context, id: str) -> object:",
    )
    assert [row["code"] for row in finding["view"] if row["here"]] == ["(ends)"]


def test_code_that_looks_at_what_an_inserted_step_gave_is_undecided(shop):
    shop.record(OLD, "o-1")
    body = 'if await ctx.v(2).activity("c", id):\n    return 1\n' + OLD

    done = shop.check(body)

    heading, message, source, _, summary = done.stdout.splitlines()
    assert heading == "w: 1 run undecided: o-1"
    assert message.startswith("  the code uses the result of a step that has not run yet (c)")
    assert source.endswith(':4: if await ctx.v(2).activity("c", id):')
    assert (done.exit_code, summary) == (0, "1 run: 0 fit, 0 would diverge, 1 undecided")


def test_an_exception_while_the_history_goes_on_is_shown_where_it_was_raised(shop):
    shop.record(OLD, "o-1", "o-2")

    [finding] = shop.document('await ctx.activity("a", id)\n{}[id]')["findings"]

    assert (finding["source"]["text"], finding["source"]["line"]) == ("{}[id]", 5)
    assert (sorted(finding["ids"]), finding["code_value"][:8]) == (["o-1", "o-2"], "KeyError")


def test_a_state_of_another_type_is_shown_where_the_loop_is_called(shop):
    body = """
    async def body(ctx, state: TYPE):
        await ctx.activity("a", id)
        await ctx.listen("go")
    await ctx.loop(body, 1)
    """
    shop.record(dedent(body).replace("TYPE", "int"), "o-1")

    [finding] = shop.document(dedent(body).replace("TYPE", "list[str]"))["findings"]

    assert finding["source"]["text"] == "await ctx.loop(body, 1)"


COMPARED = {
    "an input": ('await ctx.activity("a", id + "!")', "{1}  v1  activity a    activity a, another input"),
    "a duration": ('await ctx.activity("a", id)\nawait ctx.sleep(7)', "{2}  v1  sleep         sleep, another duration"),
    "a signal": (
        'await ctx.activity("a", id)\nawait ctx.sleep(0)\nawait ctx.listen("come")',
        "{3}  v1  listen go     listen come",
    ),
}


@pytest.mark.parametrize("what", COMPARED)
def test_what_is_compared_strictly_is_shown_as_the_call_that_it_is(shop, what):
    shop.record('await ctx.activity("a", id)\nawait ctx.sleep(0)\nawait ctx.listen("go")', "o-1")
    body, row = COMPARED[what]
    file = Path(shop.write(body))
    file.write_text(file.read_text().replace("@workflow", '@workflow(input_check="strict")'))
    default_registry.workflows._known.clear()

    assert f"    > {row}\n" in check(file.name).stdout


def test_a_late_call_is_shown_as_code_asks_for_it(shop):
    shop.record(OLD, "o-1", matching="sequence")
    file = Path(shop.write(OLD.replace('await ctx.activity("b"', 'await ctx.sleep(1)\nawait ctx.activity("b"')))
    file.write_text(file.read_text().replace("@workflow", '@workflow(matching="sequence", late_new="error")'))
    default_registry.workflows._known.clear()

    assert "    > {2}  v1  activity b    sleep\n" in check(file.name).stdout


@pytest.mark.parametrize(("matching", "options"), [("location", 'on_divergence="fail"'), ("sequence", "")])
def test_it_says_of_runs_that_would_not_be_parked_that_they_fail(shop, matching, options):
    shop.record(OLD, "o-1", matching=matching)
    file = Path(shop.write(OLD.replace('"a"', '"d"')))
    file.write_text(file.read_text().replace("@workflow", f"@workflow({options})"))
    default_registry.workflows._known.clear()

    assert "; the run would fail, not be parked (on_divergence)\n" in check(file.name).stdout


def test_an_exception_where_the_history_ends_would_fail_the_run(shop):
    shop.record('await ctx.activity("a", id)\nawait ctx.listen("go")', "o-1")
    body = 'await ctx.activity("a", id)\ngo = ctx.listen("go")\nraise TypeError("no")'

    done = shop.check(body)

    assert "w: 1 run would fail: o-1\n  the code raises TypeError: no\n" in done.stdout
    assert (done.exit_code, last(done)) == (1, "1 run: 0 fit, 0 would diverge, 1 would fail, 0 undecided")


def test_workflows_that_the_module_does_not_have_are_counted_and_named(shop):
    shop.record(OLD, "o-1")
    shop.record(OLD, "x-1", "x-2", name="refund")

    done = shop.check(OLD)

    assert done.stdout.splitlines() == [
        "2 runs of workflow 'refund' not checked: MODULE has no such workflow",
        "3 runs: 1 fit, 0 would diverge, 0 undecided, 2 not in MODULE",
    ]
    assert done.exit_code == 0
    assert shop.document(OLD)["not_in_module"] == {"refund": 2}


def test_no_open_runs(shop):
    shop.record("return 1", "o-1")

    done = shop.check(OLD)

    assert (done.exit_code, done.stdout) == (0, "no open runs\n")


def test_runs_that_were_begun_on_another_python(shop):
    shop.record(OLD, "o-1")
    [copy] = export.read(exported(shop, "o-1"))
    started = copy.log[0]
    assert isinstance(started, events.WorkflowStarted)
    ids = {name: f"{name}-2" for name in ("entity_id", "execution_id", "run_id", "tree_id")}
    older = msgspec.structs.replace(started, python="3.9", **ids)
    log = (older, *copy.log[1:])
    moved = msgspec.structs.replace(copy, log=log, instance=msgspec.structs.replace(copy.instance, **ids))
    (shop.folder / "older.jsonl").write_text("\n".join(export.write([moved])))
    CliRunner().invoke(main, ["import", "older.jsonl"])

    warning, summary = shop.check(OLD).stdout.splitlines()

    assert warning.startswith("1 run started on Python 3.9, this is 3.")
    assert summary == "2 runs: 2 fit, 0 would diverge, 0 undecided"
    assert shop.document(OLD)["other_pythons"] == {"3.9": 1}


def exported(shop: Project, id: str) -> str:
    done = CliRunner().invoke(main, ["export", id])
    assert done.exit_code == 0
    return done.stdout


def test_a_history_that_cannot_be_read(shop):
    shop.record(OLD, "o-1", "o-2")
    with sqlite3.connect(shop.folder / "shop.db") as connection:
        connection.execute("""UPDATE events SET body = '{"type":"nonsense"}' WHERE seq = 3 AND execution_id =
                              (SELECT execution_id FROM instances WHERE entity_id = 'o-2')""")
    connection.close()

    done = shop.check(OLD)

    assert "w: 1 run cannot be read: o-2\n  CorruptHistory: entry 3 of execution" in done.stdout
    assert (done.exit_code, last(done)) == (1, "2 runs: 1 fit, 0 would diverge, 1 cannot be read, 0 undecided")


# Runs together.


def test_runs_with_the_same_finding_are_reported_once(shop):
    shop.record(OLD, *(f"o-{number}" for number in range(5)))
    shop.record('await ctx.activity("a", id)\nawait ctx.activity("e", id)\nawait ctx.listen("go")', "p-1", name="w")

    done = shop.check(INSERTED)
    document = shop.document(INSERTED)

    headings = [line for line in done.stdout.splitlines() if line.startswith("w:")]
    assert headings[0].startswith("w: 5 runs would diverge: o-")
    assert headings[0].endswith(" and 2 more")
    assert headings[1:] == ["w: 1 run would diverge: p-1"]
    assert last(done) == "6 runs: 0 fit, 6 would diverge (2 findings), 0 undecided"
    assert [len(finding["ids"]) for finding in document["findings"]] == [5, 1]


def test_the_remedy_of_a_line_takes_the_highest_version_that_any_cohort_needs(shop):
    shop.record(OLD, "old")
    shop.record(OLD.replace('ctx.activity("b"', 'ctx.v(3).activity("b"'), "younger")
    both = INSERTED.replace('await ctx.activity("b"', 'await (ctx.v(3) if id == "younger" else ctx).activity("b"')

    findings = shop.document(both)["findings"]

    assert [len(finding["ids"]) for finding in findings] == [1, 1]
    assert {finding["remedy"]["edits"][0]["version"] for finding in findings} == {4}
    assert [finding["remedy"]["fits"] for finding in findings] == [1, 1]


def test_a_remedy_that_would_harm_runs_that_fit_now_says_so(shop):
    """Some runs took the new step before it got a version."""
    shop.record(OLD, "old")
    shop.record(INSERTED, "new")

    done = shop.check(INSERTED)

    assert "but 1 run that fit now would diverge with it: new" in done.stdout
    [finding] = shop.document(INSERTED)["findings"]
    assert finding["remedy"]["harms"] == ["new"]
    assert last(done) == "2 runs: 1 fit, 1 would diverge (1 finding), 0 undecided"


def test_runs_for_which_a_remedy_is_not_right_are_named(shop):
    """Both part from the code at one line; behind it, only one comes back to it."""
    steps = [f'await ctx.activity("{name}", id)\n' for name in "abcd"]
    a, b, c, d = steps
    shop.record(a + b + c + d + "await ctx.listen('go')", "o-1")
    shop.record(a + b + d + c + "await ctx.listen('go')", "o-2")
    body = a + 'await ctx.activity("e", id)\n' + b + c + d + "await ctx.listen('go')"

    done = shop.check(body)
    [finding] = shop.document(body)["findings"]

    assert sorted(finding["ids"]) == ["o-1", "o-2"]
    assert [edit["name"] for edit in finding["remedy"]["edits"]] == ["e"]
    assert (finding["remedy"]["fits"], finding["remedy"]["not_for"]) == (1, ["o-2"])
    assert "tried: 1 of 2 fit with it\n          not for o-2: restore the code" in done.stdout


# For programs, and in several processes.


def test_the_document_has_all_of_it(shop):
    shop.record(OLD, "o-1")

    document = shop.document(INSERTED)

    [finding] = document.pop("findings")
    assert document.pop("python") == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert document.pop("summary") == "1 run: 0 fit, 1 would diverge (1 finding), 0 undecided"
    counts = dict.fromkeys(("fit", "fail", "unreadable", "undecided"), 0) | {"runs": 1, "diverge": 1}
    assert document == counts | {"not_in_module": {}, "other_pythons": {}, "limited": False, "notes": []}
    [edit] = finding.pop("remedy").pop("edits")
    source = finding.pop("source")
    assert (edit["edit"], edit["version"], edit["verb"], edit["name"]) == ("insert", 2, "activity", "c")
    assert (source["line"], source["text"]) == (5, 'await ctx.activity("c", id)')
    row = {"location": "{2}", "version": 1, "history": "activity b", "code": "activity c", "here": True}
    assert finding.pop("view")[1] == row
    assert finding.pop("message").startswith("Task(1) at {2}")
    where = {"location": "{2}", "command": "Task(1)", "event_seq": 4}
    what = {"field": "name", "code_value": "c", "history_value": "b"}
    assert finding == {"workflow": "w", "outcome": "diverges", "runs": 1, "ids": ["o-1"]} | where | what


def test_only_so_many_runs(shop):
    shop.record(OLD, "o-1", "o-2", "o-3")

    done = shop.check(OLD, "--limit", "2")

    assert done.stdout == "2 runs: 2 fit, 0 would diverge, 0 undecided (there are more: --limit)\n"
    assert shop.document(OLD, "--limit", "3")["limited"] is False


@pytest.mark.parametrize("processes", [1, 2])
def test_many_runs_and_several_processes(shop, monkeypatch, processes):
    monkeypatch.setattr(checking, "_FEW", 0)
    monkeypatch.setattr(checking, "_BATCH", 2)
    monkeypatch.setenv("PYTHONPATH", SRC)
    shop.record(OLD, *(f"o-{number}" for number in range(6)))
    shop.record(INSERTED.replace('activity("c"', 'v(2).activity("c"'), *(f"p-{number}" for number in range(3)))

    document = shop.document(INSERTED, "--processes", str(processes))

    assert (document["runs"], document["diverge"]) == (9, 9)
    assert [len(finding["ids"]) for finding in document["findings"]] == [6, 3]


def test_what_the_code_prints_is_not_part_of_the_answer(shop):
    shop.record(OLD, "o-1")

    assert shop.document("print('heard')\n" + OLD)["fit"] == 1


def test_the_progress_is_a_bar_on_a_terminal_and_some_lines_elsewhere(shop, monkeypatch):
    shop.record(OLD, "o-1")
    file = shop.write(OLD)
    master, terminal = pty.openpty()
    command = [sys.executable, "-m", "resurgam", "check", file]
    environment = {**os.environ, "PYTHONPATH": SRC, "TERM": "xterm"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=terminal, timeout=HANGS, check=False)

    assert (done.returncode, done.stdout) == (0, b"1 run: 1 fit, 0 would diverge, 0 undecided\n")
    assert b"replaying" in os.read(master, 10_000)
    os.close(master)
    os.close(terminal)


# It only looks.


def test_nothing_is_written(shop):
    shop.record(OLD, "o-1", "o-2")
    before, content = shop.rows(), (shop.folder / "shop.db").read_bytes()

    assert shop.check(INSERTED).exit_code == 1
    assert shop.check(OLD).exit_code == 0

    assert (shop.folder / "shop.db").read_bytes() == content
    assert shop.rows() == before
    assert not (shop.folder / "shop.db-owners").exists()


def test_it_works_while_a_worker_holds_leases(shop):
    shop.record(OLD, "o-1")
    file = shop.write(OLD)
    begun, may_end = asyncio.Event(), asyncio.Event()
    registry = Registry()

    @registry.activity
    async def slow() -> None:
        begun.set()
        await may_end.wait()

    @registry.workflow(name="slow_one")
    async def slow_one(ctx: Context) -> str:
        await ctx.activity(slow)
        return "done"

    async def story() -> tuple[Result, list[str], str]:
        # A long lease, so that a renewal does not change the rows meanwhile.
        async with Engine(shop.url, registry=registry, queues=["slow"], lease=600) as engine:
            handle = await engine.start(slow_one, id="slow", queue="slow")
            await begun.wait()
            before = shop.rows()
            done = await asyncio.get_running_loop().run_in_executor(None, checked_by_another_process, file)
            assert shop.rows() == before
            may_end.set()
            return done, before, await handle.result()

    def checked_by_another_process(file: str) -> Result:
        command = [sys.executable, "-m", "resurgam", "check", file, "--store", shop.url]
        environment = {**os.environ, "PYTHONPATH": SRC}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANGS, check=False)

    done, before, result = asyncio.run(story())

    assert any("slow" in row and 'INSERT INTO "instances"' in row for row in before)
    assert done.stdout.splitlines()[-1] == "2 runs: 1 fit, 0 would diverge, 0 undecided, 1 not in MODULE"
    assert (done.returncode, done.stderr, result) == (0, "", "done")


# What cannot be found out.


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nowhere.py"], "there is no file"),
        (["no.such.module"], "there is no module 'no.such.module'"),
        (["checked_broken.py"], "checked_broken.py:1: 1 / 0: ZeroDivisionError"),
        (["checked_none.py"], "checked_none.py registers no workflow"),
        (["checked_fine.py", "--store", "sqlite:///nowhere.db"], "there is no file"),
        (["checked_fine.py", "--store", "sqlite:///text.db"], "file is not a database"),
        (["checked_fine.py", "--store", "sqlite:///empty.db"], "schema version 0"),
        (["checked_fine.py", "--store", "sqlite:///other.db"], "the database of another program"),
        (["checked_fine.py", "--store", "mysql://x/y"], "no store for 'mysql://x/y'"),
        (["checked_fine.py", "--store", "memory://"], "does not outlive this process"),
        (["checked_fine.py", "--limit", "0"], "0 is not in the range"),
        (["checked_fine.py", "--processes", "0"], "0 is not in the range"),
        ([], "Missing argument 'MODULE'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(shop, arguments, text):
    shop.record(OLD, "o-1")
    for name, content in {
        "checked_broken.py": "1 / 0\n",
        "checked_fine.py": HEAD + "    pass\n",
        "checked_none.py": "x = 1\n",
        "text.db": "some text " * 500,
        "empty.db": "",
    }.items():
        (shop.folder / name).write_text(content)
    with sqlite3.connect(shop.folder / "other.db") as connection:
        connection.execute("CREATE TABLE t (a)")
    connection.close()
    sys.modules.pop("checked_fine", None)

    done = check(*arguments)

    assert (done.exit_code, done.stdout) == (2, "")
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1


FLOW = """
try:
    await ctx.flow(["deal", "bill"], {"id": id})
except Exception:
    pass
await ctx.listen("go")
"""


def test_a_flow_that_a_workflow_awaits(shop):
    """The order of its goals has no meaning; other goals are another call."""
    shop.record(FLOW, "o-1")

    fits = shop.check(FLOW.replace('["deal", "bill"]', '["bill", "deal"]'))
    other = shop.check(FLOW.replace('["deal", "bill"]', '["deal"]'))
    removed = shop.check(FLOW.replace("ctx.flow(", "ctx.removed.flow(").replace(', {"id": id})', ")"))

    assert fits.exit_code == 0
    assert other.exit_code == 1
    assert "Flow(0) at {1}" in other.stdout
    assert "the code has name 'deal', entry 2 of the history has 'bill,deal'" in other.stdout
    assert removed.exit_code == 0
