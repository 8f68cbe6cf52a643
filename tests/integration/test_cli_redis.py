"""Every command against a Redis server that it cannot use: one line says why, and the password is not in it."""

import atexit
import functools
import sys
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from resurgam.cli import retention
from resurgam.cli.main import main
from resurgam.cli.worker import WorkerProcesses
from resurgam.dev.redis import Server, free_port
from support.commands import commands
from support.redis import shared_server, temporary_folder

PASSWORD = "open-sesame"
SHOP = """
from resurgam import Context, workflow

@workflow
async def greet(ctx: Context, name: str) -> str:
    return f"Hello, {name}!"
"""
STEP = """{"id": "one", "name": "One", "type": "python", "python": {"activity": "one"}}"""
ARGUMENTS = {
    "archive": ("--older-than", "1d", "--archive", "archive"),
    "begin": ("o-1",),
    "bench": ("--only", "W1", "--scale", "0.01"),
    "cancel": ("o-1",),
    "check": ("greetings.py",),
    "delete": ("o-1", "--yes"),
    "deletions": (),
    "demo": ("--plain",),
    "export": ("o-1",),
    "flow explain": ("o-1",),
    "flow plan": ("greet",),
    "flow show": ("o-1",),
    "flow start": ("greet",),
    "history": ("o-1",),
    "import": ("o-1.jsonl",),
    "keys create": ("nightly", "--role", "read"),
    "keys list": (),
    "keys revoke": ("1",),
    "list": (),
    "pause": ("o-1",),
    "purge": ("--older-than", "1d", "--yes"),
    "query": ("o-1", "total"),
    "reject": ("00aabbccddee", "no"),
    "resolve": ("00aabbccddee", "1"),
    "resume": ("o-1",),
    "retry": ("o-1",),
    "serve": ("--port", "0"),
    "show": ("o-1",),
    "signal": ("o-1", "go"),
    "start": ("greet", '"Ada"'),
    "step list": (),
    "step register": ("steps.json",),
    "step remove": ("greet",),
    "step update": ("steps.json",),
    "terminate": ("o-1",),
    "update": ("o-1", "put"),
    "vacuum": (),
    "worker": ("greetings.py",),
    "workers": (),
}
WITHOUT_STORE = {"dev", "lint", "move"}
"""Commands that take no ``--store``; `move` has two of its own, and tests of its own."""


@functools.cache
def locked_server():
    """Return a server that wants a password."""
    server = Server(temporary_folder(), "--requirepass", "another", password="another").start()
    atexit.register(server.kill)
    return server


URLS = {
    "dead": lambda: f"redis://worker:{PASSWORD}@127.0.0.1:{free_port()}",
    "wrong password": lambda: f"redis://:{PASSWORD}@127.0.0.1:{locked_server().port}",
    "no cluster": lambda: f"redis+cluster://127.0.0.1:{shared_server().port}",
    "misspelt": lambda: f"reddis://worker:{PASSWORD}@127.0.0.1:{shared_server().port}",
}


def test_all_commands_are_tried():
    assert set(ARGUMENTS) | WITHOUT_STORE == set(commands())


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Go to a folder with a module and an exported workflow."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "greetings", raising=False)
    (tmp_path / "greetings.py").write_text(SHOP)
    (tmp_path / "steps.json").write_text(STEP)
    elsewhere = ("--store", f"sqlite:///{tmp_path}/elsewhere.db")
    assert resurgam("start", "greet", '"Ada"', "--id", "o-1", *elsewhere).exit_code == 0
    (tmp_path / "o-1.jsonl").write_text(resurgam("export", "o-1", *elsewhere).stdout)


def resurgam(*arguments):
    return CliRunner().invoke(main, arguments, prog_name="resurgam")


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("command", ARGUMENTS)
def test_a_server_that_cannot_be_used_is_one_clear_error(command, url):
    check_refusal(resurgam(*command.split(), *ARGUMENTS[command], "--store", URLS[url]()))


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("url", URLS)
def test_no_worker_process_is_started_for_a_server_that_cannot_be_used(url, monkeypatch):
    monkeypatch.delattr(WorkerProcesses, "run")
    check_refusal(resurgam("worker", "greetings.py", "--processes", "2", "--store", URLS[url]()))


def check_refusal(done):
    assert done.exit_code in (1, 2)
    assert done.stdout == ""
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    assert PASSWORD not in done.stderr


def test_purge_asks_without_naming_the_password(monkeypatch):
    monkeypatch.setattr(retention, "is_terminal", lambda: True)
    monkeypatch.setattr(retention, "call_engine", lambda *_: SimpleNamespace(removed=1))
    arguments = ["purge", "--older-than", "1d", "--store", f"redis://:{PASSWORD}@server"]
    done = CliRunner().invoke(main, arguments, input="n\n", prog_name="resurgam")

    assert "Remove 1 execution from redis://server:6379?" in done.stderr
    assert PASSWORD not in done.output
