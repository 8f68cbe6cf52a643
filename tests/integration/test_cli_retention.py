"""`resurgam purge`, `resurgam vacuum` and `--retain` of `resurgam worker` and `serve`: what they remove, print and refuse."""

import asyncio
import json
import sqlite3
from datetime import timedelta

import pytest
from click.testing import CliRunner

from resurgam import Context, Engine, Registry, Retain
from resurgam.cli import retention, worker
from resurgam.cli.main import main

registry = Registry()


@registry.workflow
async def brief(ctx: Context, text: str) -> str:
    return text


@registry.workflow
async def failing(ctx: Context) -> None:
    raise ValueError("no")


@pytest.fixture
def url(tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path}/shop.db?synchronous=off"
    monkeypatch.setenv("RESURGAM_STORE", url)

    async def fill():
        async with Engine(url, registry=registry) as engine:
            await asyncio.gather(*(engine.execute(brief, "x" * 20_000, id=f"o-{n}") for n in range(5)))
            await asyncio.gather(engine.execute(failing, id="f-1"), return_exceptions=True)

    asyncio.run(fill())
    sqlite = sqlite3.connect(tmp_path / "shop.db")
    with sqlite:
        sqlite.execute("UPDATE instances SET closed_at = closed_at - 31 * 86400000 WHERE entity_id <> 'o-0'")
    sqlite.close()
    return url


def resurgam(*arguments, given=None):
    return CliRunner().invoke(main, arguments, input=given, prog_name="resurgam")


def ok(*arguments):
    done = resurgam(*arguments)
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def ids():
    return sorted(one["entity_id"] for one in json.loads(ok("list", "--json"))["instances"])


@pytest.mark.usefixtures("url")
def test_purge_removes_what_is_older_and_says_how_much():
    assert ok("purge", "--older-than", "30d", "--dry-run").startswith("would remove 5 executions that closed before 20")
    assert ok("purge", "--older-than", "5w", "--yes").startswith("removed 0 executions")
    assert ok("purge", "--older-than", "30d", "--status", "failed", "--yes").startswith("removed 1 execution that")
    assert ids() == ["o-0", "o-1", "o-2", "o-3", "o-4"]
    done = json.loads(ok("purge", "--older-than", "30d", "--name", "brief", "--yes", "--json"))
    assert (done["removed"], done["kept"], done["dry_run"]) == (4, 0, False)
    assert ids() == ["o-0"]


@pytest.mark.usefixtures("url")
def test_a_purged_workflow_is_one_clear_error():
    ok("purge", "--older-than", "30d", "--yes")
    for command in (["show", "o-1"], ["show", "o-1", "--tree"], ["history", "o-1"], ["export", "o-1"]):
        done = resurgam(*command)
        assert (done.exit_code, done.stderr) == (1, "Error: there is no workflow with id 'o-1'\n")


@pytest.mark.usefixtures("url")
@pytest.mark.parametrize("json_too", [[], ["--json"]])
def test_purge_removes_nothing_where_it_cannot_ask(json_too):
    done = resurgam("purge", "--older-than", "30d", *json_too)
    assert done.exit_code == 2
    assert "purge needs a confirmation; give --yes to confirm, or --dry-run to count only" in done.stderr
    assert len(ids()) == 6


@pytest.mark.usefixtures("url")
@pytest.mark.parametrize(("answer", "left"), [("n", 6), ("y", 1)])
def test_purge_asks_on_a_terminal(answer, left, monkeypatch):
    monkeypatch.setattr(retention, "is_terminal", lambda: True)
    done = resurgam("purge", "--older-than", "30d", given=answer)
    assert "Remove 5 executions from sqlite:///" in done.stderr
    assert done.exit_code == (0 if answer == "y" else 1)
    assert len(ids()) == left


@pytest.mark.usefixtures("url")
def test_a_long_purge_says_how_far_it_is(monkeypatch):
    monkeypatch.setattr(retention, "_PROGRESS_EVERY", 2)
    monkeypatch.setattr(retention, "_BATCH", 1)
    done = resurgam("purge", "--older-than", "30d", "--yes")
    assert done.stderr.splitlines() == ["2 removed so far", "4 removed so far"]


@pytest.mark.usefixtures("url")
def test_vacuum_says_what_it_gave_back(tmp_path):
    ok("purge", "--older-than", "30d", "--yes")
    before = (tmp_path / "shop.db").stat().st_size
    done = json.loads(ok("vacuum", "--json"))
    assert done["after"] == (tmp_path / "shop.db").stat().st_size < before <= done["before"]
    size = f"{done['after'] / 1e6:.1f} MB"
    assert ok("vacuum") == f"file size {size} before, {size} after: 0.0 MB freed\n"


class _Stopped(Exception):
    pass


@pytest.mark.usefixtures("url")
@pytest.mark.parametrize("command", [["worker", "shop_to_retain.py"], ["serve", "--port", "0"]])
def test_workers_and_servers_are_told_what_to_retain(command, tmp_path, monkeypatch):
    (tmp_path / "shop_to_retain.py").write_text("")
    told = []

    def engine(store, *, retain, **options):
        told.append(retain)
        raise _Stopped

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(worker, "Engine", engine)
    monkeypatch.setattr("resurgam.web.server.Engine", engine)
    rules = ["30d", "ping=1.5h", "ping:failed=forever", ":failed=2w", "dead=30d", "dead:=1s", "a:b:=1s", "a,b=1s"]
    given = [part for rule in rules for part in ("--retain", rule)]
    for arguments in (given, []):
        assert isinstance(resurgam(*command, *arguments).exception, _Stopped)
    assert told == [
        (
            *(Retain(timedelta(days=30)), Retain(timedelta(hours=1.5), "ping"), Retain(None, "ping", "failed")),
            *(Retain(timedelta(weeks=2), status="failed"), Retain(timedelta(days=30), dead_letters=True)),
            *(Retain(timedelta(seconds=1), name) for name in ("dead", "a:b", "a,b")),
        ),
        None,
    ]


@pytest.mark.usefixtures("url")
def test_worker_processes_are_told_the_same(tmp_path, monkeypatch):
    (tmp_path / "shop_of_processes.py").write_text("")
    told = []

    class WorkerProcesses:
        def __init__(self, command, processes, *, store):
            told.extend(part.removeprefix("--retain=") for part in command if part.startswith("--retain="))

        async def run(self):
            return 0

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(worker, "WorkerProcesses", WorkerProcesses)
    rules = ["30d", "ping=1.5h", "ping:failed=forever", ":failed=2w", "dead=30d", "dead:=1s"]
    given = [part for rule in rules for part in ("--retain", rule)]
    ok("worker", "shop_of_processes.py", *given, "--processes", "2")
    once = list(told)
    told.clear()
    ok("worker", "shop_of_processes.py", *(f"--retain={rule}" for rule in once), "--processes", "2")
    assert once == told
    assert once == [
        *("2592000.000000s", "ping:=5400.000000s", "ping:failed=forever", ":failed=1209600.000000s"),
        *("dead=2592000.000000s", "dead:=1.000000s"),
    ]


@pytest.mark.usefixtures("url")
@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["purge"], 2, "Missing option '--older-than'"),
        (["purge", "--older-than", "30"], 2, "'30' must be an age such as 90s, 15m, 2h, 7d or 4w"),
        (["purge", "--older-than", "month"], 2, "'month' must be an age such as"),
        (["purge", "--older-than", "1d", "--status", "running"], 2, "'running' is not one of 'completed'"),
        (["purge", "--older-than", "1d", "--yes", "--store", "sqlite:///gone.db"], 1, "there is no file"),
        (["vacuum", "--store", "sqlite:///gone.db"], 1, "there is no file"),
        (["worker", "json", "--retain", "30"], 2, "'30' must be a length of time such as 90s, 15m, 2h, 7d or 4w"),
        (["serve", "--retain", "30"], 2, "'30' must be a length of time such as 90s, 15m, 2h, 7d or 4w"),
        (["worker", "json", "--retain", "0d"], 2, "'0d' must be a length of time"),
        (["worker", "json", "--retain", "=1d"], 2, "'=1d' must be AGE, NAME=AGE, NAME:STATUS=AGE"),
        (["worker", "json", "--retain", ":=1d"], 2, "':=1d' must be AGE, NAME=AGE"),
        (["worker", "json", "--retain", "a:running=1d"], 2, "status must be that of a closed run (completed, failed"),
        (
            ["worker", "json", "--retain", "a=1d", "--retain", "a=2d"],
            2,
            "must have one rule for runs of 'a', got several",
        ),
    ],
)
def test_what_cannot_be_done_is_one_line(arguments, code, text):
    done = resurgam(*arguments)
    assert (done.exit_code, done.stderr.count("\n")) == (code, 1)
    assert text in done.stderr
