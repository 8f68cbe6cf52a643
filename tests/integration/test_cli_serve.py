"""`resurgam serve`, `keys` and `workers`."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest
from click.testing import CliRunner, Result
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from resurgam import Context, Engine, Outbound, Registry
from resurgam.cli.main import main
from resurgam.flows import HttpStep
from support.limits import HANGS
from support.listening import listening

registry = Registry()


@registry.workflow
async def brief(ctx: Context) -> None:
    return


SRC = str(Path(__file__).parents[2] / "src")
WITHOUT = """
import sys
sys.modules[{name!r}] = None  # as if it were not installed
from resurgam.cli.main import main
main({arguments!r}, prog_name="resurgam")
"""


@pytest.fixture
def store(tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path}/shop.db"
    monkeypatch.setenv("RESURGAM_STORE", url)
    return url


def resurgam(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, prog_name="resurgam")


def value_of(store, key):
    async def read():
        async with Engine(store, worker=False) as engine:
            return await engine.store.values.get(key)

    return asyncio.run(read())


@contextlib.contextmanager
def serving(*arguments):
    """Run a server; yield its process and what it printed when it was ready."""
    command = [sys.executable, "-m", "resurgam", "serve", "--json", "--port", "0", *arguments]
    environment = {**os.environ, "PYTHONPATH": SRC}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            line = process.stdout.readline()
            if not line:
                raise AssertionError(process.communicate(timeout=HANGS)[1])
            yield process, json.loads(line)
        finally:
            process.kill()


def test_a_server_says_where_it_is_serves_with_a_worker_and_ends_with_zero(store):
    with serving("--queue", "orders") as (process, ready):
        assert ready["url"] == ready["public_url"]
        assert ready["url"].startswith("http://127.0.0.1:")
        assert not ready["url"].endswith(":0")
        assert httpx2.get(f"{ready['url']}/health").json()["status"] == "healthy"
        assert value_of(store, "public-url") == ready["url"].encode()
        worker = json.loads(resurgam("workers", "--json").stdout)["workers"][0]
        assert worker["pid"] == process.pid
        row = resurgam("workers").stdout.splitlines()[1].split()
        assert row[:4] == [worker["worker_id"], worker["host"], str(process.pid), "orders"]
        process.send_signal(signal.SIGTERM)
        assert (process.wait(HANGS), process.stderr.read()) == (0, "")


def test_an_address_that_others_reach_is_not_served_without_a_key(store):
    done = resurgam("serve", "--host", "0.0.0.0", "--port", "0")
    assert done.exit_code == 1
    assert done.stderr.count("\n") == 1
    assert "resurgam keys create NAME --role admin" in done.stderr


def test_a_refusal_names_a_command_that_makes_a_key(store):
    resurgam("keys", "create", "nightly", "--role", "read")
    with serving("--require-keys") as (_, ready):
        refused = httpx2.get(f"{ready['url']}/workers").json()
        command = refused["detail"].split("`")[1].split()
        made = resurgam(*command[1:])
        assert (refused["status"], command[0], made.exit_code) == (401, "resurgam", 0)
        key = made.stdout.strip()
        assert httpx2.get(f"{ready['url']}/workers", headers={"Authorization": f"Bearer {key}"}).status_code == 200


def test_a_server_that_others_reach_answers_only_those_who_have_a_key(store):
    key = resurgam("keys", "create", "nightly", "--role", "read").stdout.strip()
    with serving("--host", "0.0.0.0", "--public-url", "https://flows.example/") as (process, ready):
        port = ready["url"].rpartition(":")[2]
        assert ready["needs_keys"]
        assert value_of(store, "public-url") == b"https://flows.example"
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", headers={"Host": "flows.example"}) as client:
            assert client.get("/health").status_code == 200
            assert client.get("/workers").status_code == 401
            assert client.get("/workers", headers={"Authorization": f"Bearer {key}"}).status_code == 200
            assert client.get("/workers", headers={"Authorization": f"Bearer {key[:-1]}"}).status_code == 401
        process.send_signal(signal.SIGTERM)
        assert (process.wait(HANGS), process.stderr.read()) == (0, "")


def test_a_server_removes_runs_that_closed_long_ago(store):
    async def closed():
        async with Engine(store, registry=registry) as engine:
            await engine.execute(brief, id="o-1")

    asyncio.run(closed())
    with serving("--retain", "0.1s", "--retain", "other=forever") as (_, ready):
        until = time.monotonic() + HANGS
        while httpx2.get(f"{ready['url']}/workflows/o-1").status_code == 200:
            assert time.monotonic() < until
            time.sleep(0.05)


async def test_no_secret_is_in_the_log_and_services_are_probed(store):
    """At the level that says most: a key, and the address of a webhook."""
    called: asyncio.Future[Request] = asyncio.get_running_loop().create_future()

    async def pay(request: Request) -> Response:
        called.set_result(request)
        return Response(status_code=202)

    async def broken(request: Request) -> Response:
        return Response(status_code=500)

    services = Starlette(routes=[Route("/pay", pay, methods=["POST"]), Route("/broken", broken)])
    async with listening(services) as url, httpx2.AsyncClient() as client, Engine(store, worker=False) as engine:
        await engine.register_step(HttpStep("pay", f"{url}/pay", asynchronous=True, outputs=["receipt"]))
        await engine.register_step(HttpStep("ship", f"{url}/ship", health_check=f"{url}/broken"))
        with serving("--log-level", "debug") as (process, ready):
            flow = {"id": "f-1", "goals": ["pay"]}
            key = f"rsg_1_{'5' * 64}"
            answer = await client.post(f"{ready['url']}/flows", json=flow, headers={"Authorization": f"Bearer {key}"})
            assert answer.status_code == 201
            webhook = (await asyncio.wait_for(called, HANGS)).headers["argyll-webhook-url"]
            for content in (b"{", b'{"receipt": "r-1"}', b"{}"):
                await client.post(webhook, content=content)
            assert await engine.handle("f-1").result(HANGS) == {"receipt": "r-1"}
            lines = [await asyncio.to_thread(process.stderr.readline)]
            while lines[-1] and "the service of step 'ship' is unhealthy" not in lines[-1]:
                lines.append(await asyncio.to_thread(process.stderr.readline))
            assert (await engine.step_health("ship")).status == "unhealthy"
            process.send_signal(signal.SIGTERM)
            log = "".join(lines) + (await asyncio.to_thread(process.communicate, timeout=HANGS))[1]
        assert webhook.rpartition("/")[2].partition("-")[2] not in log
        assert key not in log


def test_a_key_that_was_revoked_is_no_key_for_a_server(store):
    resurgam("keys", "create", "nightly", "--role", "admin")
    assert resurgam("keys", "revoke", "1").exit_code == 0
    assert resurgam("serve", "--require-keys", "--port", "0").exit_code == 1


def test_a_key_is_printed_once(store):
    made = resurgam("keys", "create", "nightly", "--role", "operate")
    key = made.stdout.strip()
    assert key.startswith("rsg_1_")
    assert key not in made.stderr
    resurgam("keys", "create", "other", "--role", "read")
    resurgam("keys", "revoke", "2")
    listed = resurgam("keys", "list").stdout
    assert [line.split()[:3] for line in listed.splitlines()[1:]] == [
        ["1", "nightly", "operate"],
        ["2", "other", "read"],
    ]
    documents = json.loads(resurgam("keys", "list", "--json").stdout)["keys"]
    assert [document["revoked_at"] is None for document in documents] == [True, False]
    assert key.rpartition("_")[2] not in listed + str(documents)
    assert "hash" not in documents[0]


@pytest.mark.parametrize(
    "arguments", [("revoke", "7"), ("create", "x", "--role", "owner"), ("create", "", "--role", "read")]
)
def test_a_bad_command_about_keys_is_refused_in_one_line(store, arguments):
    resurgam("keys", "create", "nightly", "--role", "operate")
    done = resurgam("keys", *arguments)
    assert done.exit_code in (1, 2)
    assert done.stderr.count("\n") == 1


def test_a_port_that_is_taken_is_told_in_one_line(store):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = resurgam("serve", "--port", str(taken.getsockname()[1]))
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: cannot listen on 127.0.0.1 port ")
    assert "in use" in done.stderr


@pytest.mark.parametrize(
    "url", ["flows.example", "ftp://x", "http://a:b@x", "http://x?y=1", "http://x:99999", "http://[x"]
)
def test_a_public_url_must_be_one_that_paths_can_be_added_to(store, url):
    done = resurgam("serve", "--public-url", url)
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["starlette", "httptools"])
def test_without_the_extra_a_server_says_what_to_install(store, name):
    program = WITHOUT.format(name=name, arguments=["serve", "--port", "0"])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=HANGS)
    assert done.returncode == 1
    assert done.stderr == f"Error: the HTTP API needs {name}; install it with: pip install 'resurgam[web]'\n"


class _Stopped(Exception):
    pass


def test_what_steps_may_call_is_given_on_the_command_line(store, tmp_path, monkeypatch):
    seen = []

    def note(*args, **options):
        seen.append(options["outbound"] if "outbound" in options else args[0].outbound)
        raise _Stopped

    monkeypatch.setattr("resurgam.cli.worker.Engine", note)
    monkeypatch.setattr("resurgam.web.server.Server", note)
    (tmp_path / "shop_without_code.py").write_text("")
    hosts = ["--outbound", "shop.example", "--outbound", "10.0.0.0/8"]

    for command in (["worker", str(tmp_path / "shop_without_code.py")], ["serve"]):
        assert isinstance(resurgam(*command, *hosts).exception, _Stopped)
        assert isinstance(resurgam(*command).exception, _Stopped)

    assert seen == [Outbound(allow=("shop.example", "10.0.0.0/8")), None] * 2
    refused = resurgam("serve", "--outbound", "10.0.0.1/8")
    assert (refused.exit_code, "has host bits set" in refused.output) == (2, True)
