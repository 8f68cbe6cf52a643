"""The command `resurgam`: what it prints for people and for programs, and how it refuses."""

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from resurgam import Context, Engine, Registry, RetryPolicy
from resurgam.cli import worker as worker_module
from resurgam.cli.main import main
from support.commands import commands
from support.limits import HANGS

SRC = str(Path(__file__).parents[2] / "src")
STORELESS = {"lint", "bench", "demo", "dev", "move"}
COMMANDS = sorted(set(commands()) - STORELESS)
LOOKING = (
    ["list"],
    ["show", "x"],
    ["history", "x"],
    ["signal", "x", "go"],
    ["cancel", "x"],
    ["terminate", "x"],
    ["pause", "x"],
    ["resume", "x"],
    ["begin", "x"],
    ["query", "x", "total"],
    ["update", "x", "add"],
    ["resolve", "x"],
    ["reject", "x", "no"],
    ["retry", "x"],
    ["export", "x"],
    ["flow", "plan", "x"],
    ["flow", "show", "x"],
    ["flow", "explain", "x"],
    ["step", "list"],
    ["step", "remove", "x"],
    ["keys", "list"],
    ["keys", "revoke", "1"],
    ["workers"],
)
QUIET = """
from resurgam.worker import watchdog

watchdog.REPORT_AFTER = 60.0  # a busy machine holds loops up too, and what a worker says is compared
"""
SHOP = f"""{QUIET}
from resurgam import Context, workflow

@workflow
async def greet_from_the_shop(ctx: Context, name: str) -> str:
    return f"Hello, {{name}}!"
"""

registry = Registry()


@registry.activity(retry=RetryPolicy(max_attempts=1))
async def charge(order: str) -> str:
    if order == "bad":
        raise ValueError("no money\nat all")
    return f"receipt for {order}"


@registry.workflow
async def checkout(ctx: Context, order: str) -> str:
    receipt = await ctx.activity(charge, order)
    return receipt if await ctx.listen("approve", type=bool) else "refused"


@pytest.fixture
def url(tmp_path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RESURGAM_STORE", f"sqlite:///{tmp_path}/shop.db")
    (tmp_path / "shop.db").touch()  # who only looks does not create it
    return f"sqlite:///{tmp_path}/shop.db"


def resurgam(*arguments: str, given: str | bytes | None = None) -> Result:
    return CliRunner().invoke(main, arguments, input=given, prog_name="resurgam")


def ok(*arguments: str, given: str | bytes | None = None) -> str:
    done = resurgam(*arguments, given=given)
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def serve(url: str, id: str) -> None:
    """Run a worker until the workflow has ended."""

    async def work() -> None:
        async with Engine(url, registry=registry) as engine:
            await asyncio.gather(engine.handle(id).result(HANGS), return_exceptions=True)

    asyncio.run(work())


def spawn(*arguments: str, **options) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "resurgam", *arguments]
    environment = {**os.environ, "PYTHONPATH": SRC}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen(command, env=environment, text=True, **pipes)


def test_a_workflow_from_start_to_end_for_people(url):
    assert ok("start", "checkout", '"o"', "--id", "o-1", "--tag", "shop=b").startswith("started checkout as o-1 (run ")
    assert "waits for  a worker that serves queue 'default'" in ok("show", "o-1")
    assert ok("signal", "o-1", "approve", "true", "--id", "s-1") == "sent signal 'approve' to o-1\n"
    serve(url, "o-1")

    heading, row = ok("list", "--status", "completed", "--tag", "shop=b").splitlines()
    assert heading.split() == ["ID", "NAME", "STATUS", "QUEUE", "CREATED", "CLOSED", "TAGS"]
    assert row.startswith("o-1  checkout  completed  default  ")
    assert heading.index("TAGS") == row.index("shop=b")
    lines = ok("history", "o-1").splitlines()
    assert lines[0].split() == ["SEQ", "TIME", "TYPE", "LOCATION", "NAME", "VALUE"]
    assert any(line.endswith('"receipt for o"') and "workflow_completed" in line for line in lines)
    assert any("{1}" in line and "activity_scheduled" in line for line in lines)


def test_a_workflow_from_start_to_end_for_programs(url):
    assert json.loads(ok("start", "checkout", '["o"]', "--id", "o-1", "--json"))["entity_id"] == "o-1"
    assert json.loads(ok("signal", "o-1", "approve", "true", "--json")) == {"entity_id": "o-1", "signal": "approve"}
    serve(url, "o-1")

    page = json.loads(ok("list", "--json"))
    assert [(i["entity_id"], i["status"]) for i in page["instances"]] == [("o-1", "completed")]
    assert page["cursor"] is None
    assert json.loads(ok("show", "o-1", "--json"))["waiting_for"] == []
    events = [json.loads(line) for line in ok("history", "o-1", "--json").splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))


def test_a_failure_is_shown_with_its_cause(url):
    ok("start", "checkout", '"bad"', "--id", "o-2")
    serve(url, "o-2")

    assert "caused by  ValueError: no money at all" in ok("show", "o-2").splitlines()
    assert json.loads(ok("show", "o-2", "--json"))["error"]["cause"]["error"] == "ValueError: no money\nat all"


def test_cancel_and_pages(url):
    for name in ("a", "b"):
        ok("start", "checkout", '"o"', "--id", name)
    assert ok("cancel", "a", "--reason", "sold out") == "requested cancellation of a\n"
    serve(url, "a")

    assert json.loads(ok("list", "--status", "cancelled", "--json"))["instances"][0]["entity_id"] == "a"
    cursor = ok("list", "--limit", "1").splitlines()[-1].removeprefix("there are more: --cursor ")
    assert "there are more" not in ok("list", "--limit", "1", "--cursor", cursor)


def test_a_workflow_is_exported_and_imported_for_people(url, tmp_path):
    ok("start", "checkout", '"o"', "--id", "o-1")
    ok("signal", "o-1", "approve", "true")
    other = f"sqlite:///{tmp_path}/other.db"

    assert ok("export", "o-1", "--output", "o.jsonl") == "exported o-1 to o.jsonl (3 lines)\n"
    assert (tmp_path / "o.jsonl").read_text() == ok("export", "o-1") == ok("export", "o-1", "--output", "-")
    run = json.loads(ok("show", "o-1", "--json"))["run_id"]
    assert ok("import", "o.jsonl", "--store", other) == f"imported o-1 (run {run}, running, 1 entries)\n"
    serve(other, "o-1")

    again = f"o-1 (run {run}, completed, 8 entries) exists already; left unchanged\n"
    assert ok("import", "-", "--store", other, given=ok("export", "o-1")) == again
    assert "completed" in ok("list", "--store", other)
    assert "running" in ok("list")


def test_a_workflow_is_exported_and_imported_for_programs(url, tmp_path):
    ids = json.loads(ok("start", "checkout", '"o"', "--id", "o-1", "--json"))
    other = f"sqlite:///{tmp_path}/other.db"

    written = json.loads(ok("export", "o-1", "--run", ids["run_id"], "--output", "o.jsonl", "--json"))
    assert written == {"entity_id": "o-1", "output": "o.jsonl", "lines": 2}
    assert [json.loads(line)["type"] for line in ok("export", "o-1", "--json").splitlines()] == ["instance", "workflow_started"]  # fmt: skip
    for new in (True, False):
        [found] = json.loads(ok("import", "o.jsonl", "--store", other, "--json"))["imported"]
        assert (found["execution_id"], found["status"], found["new"]) == (ids["execution_id"], "running", new)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "bad.jsonl, line 1: the lines end here, but the head of an execution"),
        (
            b"\n{}\n",
            "bad.jsonl, line 2: not a line of an export: Object missing required field `type`; export it again",
        ),
        (b'{"type":"instance","format":9}', "bad.jsonl, line 1: the line has format 9, this Resurgam reads 1"),
        (b"\n\n\xff", "bad.jsonl, line 3: not UTF-8; import the file as export wrote it"),
    ],
)
def test_a_file_that_is_no_export_is_one_line(url, tmp_path, content, part):
    (tmp_path / "bad.jsonl").write_bytes(content)

    done = resurgam("import", "bad.jsonl")

    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert part in done.stderr


def test_what_cannot_come_in_or_be_written_is_one_line(url, tmp_path):
    ok("start", "checkout", '"o"', "--id", "o-1")
    ok("start", "checkout", '"o"', "--id", "o-1", "--store", f"sqlite:///{tmp_path}/other.db")

    taken = resurgam("import", "-", "--store", f"sqlite:///{tmp_path}/other.db", given=ok("export", "o-1"))
    nowhere = resurgam("export", "o-1", "--output", "no/such/file")

    assert (taken.exit_code, nowhere.exit_code) == (1, 1)
    assert taken.stderr.startswith("Error: workflow id 'o-1' is in use by an open execution of 'checkout' (running, ")
    assert (
        nowhere.stderr == "Error: no/such/file cannot be written: No such file or directory; choose another --output\n"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["show", "x"], 1, "there is no workflow with id 'x'"),
        (["history", "x"], 1, "there is no workflow with id 'x'"),
        (["signal", "x", "go"], 1, "there is no workflow with id 'x'"),
        (["cancel", "x"], 1, "there is no workflow with id 'x'"),
        (["start", "w", "--tag", "k"], 2, "Invalid value for '--tag': 'k' is not of the form KEY=VALUE (see resurgam start --help)"),
        (["start", "w", "--timeout", "1"], 2, "--timeout needs --wait; give both (see resurgam start --help)"),
        (["start", "w", "--id", ""], 2, "Invalid value for '--id': must not be empty (see resurgam start --help)"),
        (["list", "--store", ""], 2, "the store is missing: give --store URL or set RESURGAM_STORE, as in sqlite:///shop.db (see resurgam list --help)"),
        (["export", "x"], 1, "there is no workflow with id 'x'"),
        (["export", "x", "--run", "r"], 1, "there is no workflow with id 'x' and run 'r'"),
        (["export", "x", "--output", ""], 2, "Invalid value for '--output': must not be empty (see resurgam export --help)"),
        (["import", "none"], 2, "Invalid value for 'FILE': 'none': No such file or directory (see resurgam import --help)"),
        (["start", "w", "x" * 999], 2, f"Invalid value for '[JSON]': '{'x' * 200}'... is not JSON: JSON is malformed: invalid character (byte 0); quote a string, as in '\"approve\"' (see resurgam start --help)"),
        (["list", "--store", "sqlite://["], 2, "the store 'sqlite://[' is not a URL: Invalid IPv6 URL; write it as in sqlite:///shop.db (see resurgam list --help)"),
        (["show"], 2, "Missing argument 'ID' (see resurgam show --help)"),
    ],
)  # fmt: skip
def test_an_error_is_one_line(url, arguments, code, line):
    done = resurgam(*arguments)

    assert (done.exit_code, done.stdout, done.stderr) == (code, "", f"Error: {line}\n")


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["start", "w", "oops"], 2, "'oops' is not JSON: JSON is malformed: invalid character (byte 0)"),
        (["signal", "x", "go", "{"], 2, "'{' is not JSON: Input data was truncated"),
        (["start", "w", "--wait", "--timeout", "nan"], 2, "nan is not a number of seconds"),
        (["start", "w", "--wait", "--timeout", "0"], 1, "waits for a worker that serves queue 'default'"),
        (["list", "--store", "nosql://x"], 1, "no store for 'nosql://x'"),
        (["worker", "no_such_module"], 2, "there is no module 'no_such_module' in "),
        (["worker", "none.py"], 2, "there is no file "),
        (["worker", "json.py"], 2, "Python has a module 'json'; rename the file"),
        (["worker", "broken.py"], 1, "broken.py:2: import no_such_thing: ModuleNotFoundError: No module named"),
        (["worker", "wrong.py"], 1, "wrong.py:1: def: SyntaxError: "),
    ],
)
def test_an_error_says_what_is_wrong(url, tmp_path, monkeypatch, arguments, code, part):
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name, text in {"json": "", "broken": "\nimport no_such_thing\n", "wrong": "def\n"}.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    monkeypatch.delitem(sys.modules, "wrong", raising=False)

    done = resurgam(*arguments)

    assert (done.exit_code, done.stderr.count("\n")) == (code, 1)
    assert part in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_and_names_the_store(command):
    text = ok(*command.split(), "--help")

    assert f"Example: resurgam {command} " in text
    assert "RESURGAM_STORE" in text


@pytest.mark.parametrize("processes", [1, 2])
def test_a_worker_serves_until_it_is_asked_to_stop(url, tmp_path, processes):
    (tmp_path / "shop.py").write_text(SHOP)
    worker = spawn("worker", "shop.py", "--processes", str(processes))
    try:
        for _ in range(processes):
            assert worker.stdout.readline() == f"serving queue default of {url}; stop with Ctrl-C\n"
        out = ok("start", "greet_from_the_shop", '"Ada"', "--wait", "--timeout", "120")
        assert out.splitlines()[1] == '"Hello, Ada!"'
    finally:
        worker.send_signal(signal.SIGTERM)
        _, errors = worker.communicate(timeout=HANGS)
    assert (worker.returncode, errors) == (0, "")


NOISY = f"""{QUIET}
from resurgam import Context, workflow

@workflow
async def slots(ctx: Context) -> None:
    ctx.logger.info("asking")

@workflow
async def breaks(ctx: Context) -> None:
    raise LookupError("no such thing")
"""


@pytest.mark.parametrize(
    ("arguments", "setup", "lines"),
    [
        (
            [],
            "",
            [" INFO resurgam.workflow.slots: [s] asking", " ERROR resurgam.workflow: workflow 'breaks' (b), attempt 1"],
        ),
        (["--log-level", "error"], "", [" ERROR resurgam.workflow: workflow 'breaks' (b), attempt 1 failed"]),
        ([], "logging.basicConfig(format='mine: %(message)s')", ["mine: workflow 'breaks' (b), attempt 1 failed"]),
        (
            ["--log-level", "INFO", "--processes", "2"],
            "logging.basicConfig(format='mine: %(message)s')",
            ["mine: [s] asking", "mine: workflow 'breaks' (b), attempt 1 failed"],
        ),
    ],
    ids=["default", "level", "own", "own and level"],
)
def test_a_worker_logs_and_runs_as_many_activities_as_it_is_told(url, tmp_path, arguments, setup, lines):
    (tmp_path / "noisy.py").write_text(f"import logging\n{setup}\n{NOISY}")
    worker = spawn("worker", "noisy.py", "--max-activities", "7", *arguments)
    try:
        assert worker.stdout.readline().startswith("serving")
        ok("start", "slots", "--id", "s", "--wait", "--timeout", "120")
        assert {one["slots"] for one in json.loads(ok("workers", "--json"))["workers"]} == {7}
        assert resurgam("start", "breaks", "--id", "b", "--wait", "--timeout", "120").exit_code == 1
    finally:
        worker.send_signal(signal.SIGTERM)
        _, said = worker.communicate(timeout=HANGS)
    assert 'raise LookupError("no such thing")' in said
    logged = [line for line in said.splitlines() if "resurgam." in line or "mine: " in line]
    assert len(logged) == len(lines)
    assert all(line in found for line, found in zip(lines, logged, strict=True)), said


def test_on_a_terminal_the_table_is_rich(url):
    ok("start", "checkout", '"o"', "--id", "[red]o[/red]")
    ours, theirs = pty.openpty()
    assert spawn("list", stdout=theirs).communicate(timeout=HANGS)[1] == ""
    os.close(theirs)
    shown = os.read(ours, 10_000).decode()
    os.close(ours)

    assert "\x1b[" in shown or os.environ.get("TERM", "dumb") == "dumb" or "NO_COLOR" in os.environ
    assert "[red]o" in shown


@pytest.mark.parametrize("arguments", LOOKING, ids=" ".join)
def test_who_only_looks_creates_no_file(url, tmp_path, arguments):
    for path in (f"{tmp_path}/typo.db", f"{tmp_path}/no/typo.db", f"{tmp_path}/shop.db/typo.db"):
        done = resurgam(*arguments, "--store", f"sqlite:///{path}")
        assert (done.exit_code, done.stdout) == (1, "")
        assert done.stderr == f"Error: there is no file {path}; check --store\n"
    assert [file.name for file in tmp_path.iterdir()] == ["shop.db"]


def test_who_starts_or_imports_may_create_the_file(url, tmp_path):
    ok("start", "w", "--id", "o-1", "--store", f"sqlite:///{tmp_path}/new%20one.db")
    lines = ok("export", "o-1", "--store", f"sqlite:///{tmp_path}/new%20one.db")
    ok("import", "-", "--store", "sqlite:///newer.db", given=lines)

    assert {"new one.db", "newer.db"} < {file.name for file in tmp_path.iterdir()}


@pytest.mark.parametrize("arguments", [*LOOKING, ["start", "w"], ["import", "-"], ["worker", "shop"]])
@pytest.mark.parametrize("store", ["memory://", "sqlite://", "sqlite:///"])
def test_a_store_that_is_gone_with_the_process_is_refused(url, arguments, store):
    done = resurgam(*arguments, "--store", store)

    line = f"{store!r} does not outlive this process; use a file, as in sqlite:///shop.db"
    path = " ".join(arguments[: 2 if arguments[0] in ("flow", "keys", "step") else 1])
    hint = f"(see resurgam {path} --help)"
    assert (done.exit_code, done.stderr) == (2, f"Error: the store {line} {hint}\n")


def test_an_id_in_use_is_an_error_that_fits_the_command_line(url):
    ok("start", "w", "--id", "my dup")
    done = resurgam("start", "w", "--id", "my dup")

    line = "workflow id 'my dup' is in use by an open execution; choose another --id or --if-exists, or inspect it"
    assert (done.exit_code, done.stderr) == (1, f"Error: {line}: resurgam show 'my dup'\n")


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_who_waits_is_told_the_id_first(url, form):
    waiting = spawn("start", "w", "--id", "o-1", "--wait", *form)
    try:
        told = (waiting.stderr if form else waiting.stdout).readline()
        assert told.startswith("started w as o-1 (run ")
        waiting.send_signal(signal.SIGINT)
        out, errors = waiting.communicate(timeout=HANGS)
    finally:
        waiting.kill()
    assert (waiting.returncode, out, errors) == (130, "", "Error: interrupted\n")


def test_a_wait_that_is_too_long_has_told_the_id(url):
    done = resurgam("start", "w", "--id", "o-1", "--wait", "--timeout", "0", "--json")

    told, error = done.stderr.splitlines()
    assert (done.exit_code, done.stdout) == (1, "")
    assert told.startswith("started w as o-1 (run ")
    assert error.startswith("Error: ")


def test_the_summary_of_every_command_is_whole():
    _, summaries = ok("--help").split("Commands:")

    assert "..." not in summaries
    assert "…" not in summaries


@pytest.mark.parametrize("arguments", [["list"], ["list", "--json"], ["start", "w"], ["--help"]], ids=" ".join)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_is_full_is_one_line(url, monkeypatch, arguments, unbuffered):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with Path("/dev/full").open("w") as full:
        full_up = spawn(*arguments, stdout=full)
        _, errors = full_up.communicate(timeout=HANGS)

    line = "the output cannot be written: No space left on device; redirect it elsewhere"
    assert (full_up.returncode, errors) == (1, f"Error: {line}\n")


def test_an_output_without_a_reader_is_no_traceback(url):
    reading, writing = os.pipe()
    os.close(reading)
    unread = spawn("list", stdout=writing)
    os.close(writing)

    assert unread.communicate(timeout=HANGS)[1] == ""
    assert unread.returncode == 1


def test_a_worker_whose_output_is_full_serves_all_the_same(url, tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)
    with Path("/dev/full").open("w") as full:
        worker = spawn("worker", "shop.py", stdout=full)
    try:
        assert worker.stderr.readline().startswith("Error: the output cannot be written: ")
        assert "Hello, Ada!" in ok("start", "greet_from_the_shop", '"Ada"', "--wait", "--timeout", "120")
    finally:
        worker.send_signal(signal.SIGTERM)
        _, errors = worker.communicate(timeout=HANGS)
    assert (worker.returncode, errors) == (0, "")


def test_a_process_that_is_killed_is_named_and_replaced(url, tmp_path):
    # In one write: print makes two where output is not buffered, and those of two processes may mix.
    (tmp_path / "shop.py").write_text(f"import os\nos.write(1, b'%d\\n' % os.getpid())\n{SHOP}")
    worker = spawn("worker", "shop.py", "--processes", "2")
    try:
        lines = [worker.stdout.readline().strip() for _ in range(5)]
        victim = next(int(line) for line in lines if line.isdigit() and int(line) != worker.pid)
        os.kill(victim, signal.SIGKILL)
        assert worker.stderr.readline() == f"worker process {victim} ended with SIGKILL; starting another\n"
        assert worker.stdout.readline().strip().isdigit()
        assert worker.stdout.readline().startswith("serving queue default ")
    finally:
        worker.send_signal(signal.SIGTERM)
        _, errors = worker.communicate(timeout=HANGS)
    assert (worker.returncode, errors) == (0, "")


def test_processes_end_with_the_one_that_started_them_even_if_it_is_killed(url, tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)
    worker = spawn("worker", "shop.py", "--processes", "2")
    for _ in range(2):
        assert worker.stdout.readline().startswith("serving queue default ")
    worker.kill()
    worker.communicate(timeout=HANGS)  # they have the other ends of these pipes


async def test_a_process_that_fails_again_and_again_ends_all(monkeypatch, capfd, tmp_path):
    """One of the two always fails; the other one would live."""
    monkeypatch.setattr(worker_module, "_RESTART_DELAY", 0.0)
    monkeypatch.setattr(worker_module, "_FAILURE_SECONDS", HANGS)
    script = 'mkdir "$0/taken" 2>/dev/null && exec sleep 60; exit 3'
    code = await worker_module.WorkerProcesses(["sh", "-c", script, str(tmp_path)], 2, store="").run()

    lines = capfd.readouterr().err.splitlines()
    assert code == 3
    assert [line.split("; ")[1] for line in lines] == ["starting another"] * 4 + ["stopping all processes"]
    assert all("ended with exit code 3" in line for line in lines)


async def test_processes_that_are_killed_never_end_all(monkeypatch, capfd, tmp_path):
    monkeypatch.setattr(worker_module, "_RESTART_DELAY", 0.0)
    script = 'echo >> "$0"; [ $(wc -l < "$0") -gt 12 ] && kill -TERM $PPID && exec sleep 60; kill -9 $$'
    await worker_module.WorkerProcesses(["sh", "-c", script, str(tmp_path / "count")], 1, store="").run()

    assert capfd.readouterr().err.count("ended with SIGKILL; starting another") == 12
