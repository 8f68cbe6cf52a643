"""The programs of examples/web run as a person runs them: in processes of their own, over real sockets."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest

from resurgam.dev.redis import free_port
from support.limits import HANGS

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples/web"


@contextlib.contextmanager
def running(example: str, folder: Path):
    """Run an example in a folder, with its output as text; it is killed at the end if it is still there."""
    port = free_port()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PORT": str(port)}
    process = subprocess.Popen(
        [sys.executable, "-W", "error", EXAMPLES / example],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        try:
            yield process, f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def answered(process, client: httpx2.Client, method: str, url: str, **options) -> httpx2.Response:
    """Send a request as soon as the server listens."""
    begin = time.monotonic()
    while True:
        try:
            return client.request(method, url, **options)
        except httpx2.ConnectError:
            assert process.poll() is None, process.stdout.read()
            assert time.monotonic() - begin < HANGS


@pytest.fixture
def client():
    with httpx2.Client(trust_env=False, timeout=HANGS) as client:
        yield client


def test_a_person_decides_on_the_approval_page_and_the_workflow_goes_on(tmp_path, client):
    with running("approval_page.py", tmp_path) as (process, url):
        address = re.search(r"http://\S+", process.stdout.readline())[0]
        assert "<button formaction=?buy=yes>" in answered(process, client, "GET", address).text
        assert client.post(f"{url}/guessed?buy=yes").status_code == 404
        assert client.post(f"{address}?buy=yes").text == "Thank you."
        assert process.stdout.read() == "a piano is bought\n"
        assert process.wait() == 0


def test_the_approval_page_has_thirty_lines():
    """Those of the page itself and of the workflow: without imports, empty lines and what starts them."""
    code = (EXAMPLES / "approval_page.py").read_text().partition("\nPORT")[2].partition("if __name__")[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 30


def test_the_shop_has_its_own_routes_and_those_of_the_engine(tmp_path, client):
    with running("shop.py", tmp_path) as (process, url):
        large = {"id": "o-1", "cents": 490_000}
        assert answered(process, client, "POST", f"{url}/orders", json=large).json() == {"id": "o-1"}
        assert client.post(f"{url}/orders", json=large).status_code == 202
        assert client.post(f"{url}/orders", json={"id": "o-1", "cents": 0}).status_code == 422
        assert client.get(f"{url}/orders/o-1").json()["status"] == "running"
        assert client.get(f"{url}/orders/o-2").status_code == 404

        api = f"{url}/resurgam/workflows/o-1"
        assert client.get(api).json()["code"] == "no_key"
        client.headers["Authorization"] = f"Bearer {key_of(tmp_path)}"
        assert client.get(api).json()["waiting_for"] == ["signal 'approve' at {1}"]
        assert client.post(f"{api}/signals/approve", json={}).status_code == 200
        assert client.get(f"{api}/result").json()["result"] == "4900.00 for o-1"
        assert client.get(f"{url}/orders/o-1").json()["receipt"] == "4900.00 for o-1"
        events = client.get(f"{url}/resurgam/events", params={"after": "", "follow": False, "instance": "o-1"})
        assert '"type":"workflow_completed"' in events.text
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANGS) in (0, -signal.SIGTERM), process.stdout.read()


def key_of(folder: Path) -> str:
    """Create a key for the shop, as its operator does."""
    command = [sys.executable, "-m", "resurgam", "keys", "create", "operator", "--role", "operate"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "RESURGAM_STORE": "sqlite:///shop.db"}
    return subprocess.check_output(command, cwd=folder, env=environment, text=True, stderr=subprocess.DEVNULL).strip()


@pytest.mark.skipif(shutil.which("perl") is None, reason="there is no perl")
def test_a_flow_of_three_services_completes_or_names_the_one_that_refused(tmp_path):
    """The stock is in Perl and answers its first call by 503; the carrier answers by the webhook."""
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / "services/order.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    completed, failed = done.stdout.splitlines()
    assert completed == "o-1 completed {'parcel': 'piano from shelf 1, 4900.00 on delivery'}"
    assert failed.startswith("o-2 failed step 'ship' failed: ")
    assert "tuba" in failed
    assert "answered 503 Service Unavailable: still starting" in done.stderr


def test_the_service_in_perl_needs_no_module_beyond_those_of_every_debian():
    used = re.findall(r"^use ([\w:]+)", (EXAMPLES / "services/stock.pl").read_text(), re.MULTILINE)
    assert used == ["strict", "warnings", "IO::Socket::INET"]
