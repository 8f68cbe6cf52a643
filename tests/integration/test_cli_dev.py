"""`resurgam dev --with SERVER`: a server and a worker that end together."""

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest

from resurgam import Engine
from support import postgres, redis
from support.limits import HANGS

SRC = str(Path(__file__).parents[2] / "src")
SHOP = """
from resurgam import Context, workflow

@workflow
async def greet(ctx: Context, name: str) -> str:
    return f"Hello, {name}!"
"""
NAMES = {"postgres": "Postgres", "redis": "Redis"}


@pytest.fixture(params=["postgres", "redis"])
def kind(request):
    return request.param


@contextlib.contextmanager
def dev(kind, folder, *arguments):
    """Run the command; yield the process and what it printed first."""
    command = [sys.executable, "-m", "resurgam", "dev", "--with", kind, "--json", *arguments]
    environment = {**os.environ, "PYTHONPATH": SRC}
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0
    )
    try:
        line = process.stdout.readline()
        if not line:
            raise AssertionError(process.communicate(timeout=HANGS)[1].decode())
        yield process, msgspec.json.decode(line)
    finally:
        process.terminate()
        process.communicate(timeout=HANGS)


def refused(kind, folder, *arguments):
    """Run the command to its end."""
    command = [sys.executable, "-m", "resurgam", "dev", "--with", kind, *arguments]
    environment = {**os.environ, "PYTHONPATH": SRC}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False, timeout=HANGS)


def is_gone(url):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", urlsplit(url).port)) != 0


async def result_of(url, id_):
    async with Engine(url, worker=False) as engine:
        return await asyncio.wait_for(engine.handle(id_).result(), HANGS)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_worker_serves_the_module_and_ends_with_the_server(kind, tmp_path, number):
    (tmp_path / "shop.py").write_text(SHOP)
    with dev(kind, tmp_path, "shop.py") as (process, printed):
        assert printed["folder"] == str(tmp_path / f"resurgam-{kind}")
        async with Engine(printed["url"], worker=False) as engine:
            handle = await engine.start("greet", "Ada", id="one")
            assert await asyncio.wait_for(handle.result(), HANGS) == "Hello, Ada!"
        process.send_signal(number)
        assert process.wait(HANGS) == 0
        assert is_gone(printed["url"])


def test_the_url_can_be_copied_from_the_line_that_the_server_is_ready(kind, tmp_path):
    command = [sys.executable, "-m", "resurgam", "dev", "--with", kind]
    environment = {**os.environ, "PYTHONPATH": SRC}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        process.terminate()
    url, _, rest = line.removeprefix(f"{kind} is ready at ").partition(" ")
    assert rest == f"with its data in {tmp_path}/resurgam-{kind}; stop with Ctrl-C\n"
    assert urlsplit(url).port
    assert url[-1].isalnum() or url[-1] == "/"


async def test_the_data_is_there_again_the_next_time(kind, tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)
    with dev(kind, tmp_path) as (process, printed):
        async with Engine(printed["url"], worker=False) as engine:
            await engine.start("greet", "Ada", id="one")
        process.send_signal(signal.SIGINT)
        assert process.wait(HANGS) == 0
    with dev(kind, tmp_path, "shop.py") as (_, printed):
        assert await result_of(printed["url"], "one") == "Hello, Ada!"


def test_the_server_ends_even_if_the_command_is_killed(kind, tmp_path):
    with dev(kind, tmp_path) as (process, printed):
        process.kill()
        process.wait(HANGS)
        with (tmp_path / f"resurgam-{kind}" / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # once the server has ended
        assert is_gone(printed["url"])


async def test_the_worker_ends_even_if_the_command_is_killed(kind, tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)
    with dev(kind, tmp_path, "shop.py") as (process, printed):
        async with Engine(printed["url"], worker=False) as engine:
            handle = await engine.start("greet", "Ada", id="one")
            assert await asyncio.wait_for(handle.result(), HANGS) == "Hello, Ada!"
        process.kill()
        process.communicate(timeout=HANGS)  # the worker has the other end of these pipes


def test_an_error_of_the_module_comes_before_the_server(kind, tmp_path):
    done = refused(kind, tmp_path, "nothing.py")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"there is no file" in done.stderr
    assert not (tmp_path / f"resurgam-{kind}").exists()


def test_a_second_server_with_the_same_data_is_refused(kind, tmp_path):
    with dev(kind, tmp_path):
        done = refused(kind, tmp_path)
        assert done.returncode == 1
        assert done.stderr.decode().startswith("Error: another server runs with the data in")


def test_a_port_that_is_in_use_is_an_error(kind, tmp_path):
    server = {"postgres": postgres, "redis": redis}[kind].shared_server()
    done = refused(kind, tmp_path, "--port", str(server.port))
    assert done.returncode == 1
    assert f"the {NAMES[kind]} server did not start" in done.stderr.decode()
