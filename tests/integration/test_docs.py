"""The documentation is executed, and names files that exist.

The files of docs/changing-code.md, docs/flows.md, docs/inspecting.md, docs/moving.md and docs/tutorial.md are written and
their commands run in order, and the output is compared. Those of docs/http.md, docs/redis.md and docs/postgres.md are run by a
shell, with stand-ins for curl and redis-cli. Each block of docs/workflow-api.md and docs/retention.md is a program of its own.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from resurgam import Registry
from resurgam.dev.redis import Server, free_port
from resurgam.store.postgres.migrate import migrations
from resurgam.store.redis.keys import KEYS
from resurgam.testing import Environment
from resurgam.web.app import ENDPOINTS
from support.limits import HANGS
from support.postgres import own_server
from support.redis import temporary_folder

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/changing-code.md").read_text()
FILE = r"```python\n# (\S+\.py)\n((?:.*\n)*?)```"
COMMAND = r"^    \$ (.+)\n((?:(?:    (?!\$ ).*)?\n)*)"
STEPS = re.findall(f"{FILE}|{COMMAND}", PAGE, re.MULTILINE)
INSPECTING = re.findall(f"{FILE}|{COMMAND}", (ROOT / "docs/inspecting.md").read_text(), re.MULTILINE)
MOVING = re.findall(f"{FILE}|{COMMAND}", (ROOT / "docs/moving.md").read_text(), re.MULTILINE)
TUTORIAL = re.findall(f"{FILE}|{COMMAND}", (ROOT / "docs/tutorial.md").read_text(), re.MULTILINE)
STARTS = {"python": [sys.executable], "resurgam": [sys.executable, "-m", "resurgam"]}


def run(command: str, folder: Path) -> str:
    first, *rest = shlex.split(command)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{folder}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [*STARTS[first], *rest], cwd=folder, env=environment, capture_output=True, text=True, timeout=HANGS, check=False
    )
    assert done.returncode == 0 or "would diverge" in done.stdout, done.stderr + done.stdout
    return done.stdout


def collapsed(text: str) -> str:
    """Return a text with its whitespace collapsed."""
    return " ".join(text.split())


@pytest.mark.parametrize(
    "steps", [STEPS, INSPECTING, MOVING, TUTORIAL], ids=["changing-code", "inspecting", "moving", "tutorial"]
)
def test_the_commands_of_a_page_print_what_it_shows(steps, tmp_path):
    (tmp_path / "histories").mkdir()
    run_steps(steps, tmp_path)


def run_steps(steps, folder):
    """Write the files of a page and run its commands, in order; compare what they print."""
    for file, content, command, printed in steps:
        if file:
            (folder / file).write_text(f"# {file}\n{content}")
            continue
        expected = ".*".join(map(re.escape, collapsed(printed).split("...")))
        assert re.search(f"^{expected}", collapsed(run(command, folder)).removeprefix(". [100%] ")), command


FLOWS = (ROOT / "docs/flows.md").read_text()
FLOW_STEPS = re.findall(f"{FILE}|{COMMAND}", FLOWS, re.MULTILINE)
DEFINITION = r"`(\S+\.json)`:\n\n```json\n(.*?)```"


def test_the_commands_about_flows_print_what_the_page_shows(tmp_path):
    """The drawing that a command writes is the one on the page."""
    for file, content in re.findall(DEFINITION, FLOWS, re.DOTALL):
        (tmp_path / file).write_text(content)
    run_steps(FLOW_STEPS, tmp_path)
    assert (tmp_path / "flows.svg").read_text() == (ROOT / "docs/flows.svg").read_text()


def test_every_block_and_command_about_flows_is_used():
    files = [file for file, *_ in FLOW_STEPS if file]
    commands = [" ".join(command.split()[1:3]) for *_, command, _ in FLOW_STEPS if command]
    assert files == [
        *("orders.py", "shop.py", "approval.py", "quotes.py", "routes.py", "invoice.py", "charges.py", "test_orders.py")
    ]
    assert commands == [
        *(
            "shop.py",
            "flow plan",
            "flow plan",
            "flow plan",
            "flow show",
            "approval.py",
            "flow explain",
            "approval.py Grace",
        ),
        *("quotes.py", "routes.py", "flow explain", "step register", "step list", "invoice.py", "step remove"),
        *("charges.py", "-m pytest"),
    ]
    assert FLOWS.count("```") == 2 * (len(files) + len(re.findall(DEFINITION, FLOWS, re.DOTALL)))


def test_every_block_of_changing_code_is_used():
    assert [file or command.split()[1] for file, _, command, _ in STEPS] == [
        *("shop.py", "orders.py", "orders.py", "shop.py", "check", "shop.py", "check", "shop.py", "check"),
        *("shop.py", "check", "export", "test_histories.py", "-m"),
    ]
    assert PAGE.count("```python") == sum(bool(file) for file, *_ in STEPS)


def test_every_file_and_command_of_the_tutorial_is_used():
    assert [file or command.split()[1] for file, _, command, _ in TUTORIAL] == [
        *("shop.py", "shop.py", "show", "shop.py", "history", "test_shop.py", "-m"),
    ]


def test_every_file_and_command_of_moving_is_used():
    assert [file or command.split()[1] for file, _, command, _ in MOVING] == [
        *("shop.py", "shop.py", "move", "list", "move"),
    ]


def test_every_command_of_inspecting_is_run():
    assert [command.split()[1] for *_, command, _ in INSPECTING if command] == [
        *("shop.py", "list", "list", "show", "show", "history"),
    ]


REDIS = re.findall(f"{FILE}|{COMMAND}", (ROOT / "docs/redis.md").read_text(), re.MULTILINE)
REDIS_CLI = ROOT / "tests/support/redis_cli.py"


def run_commands(page, folder, functions, url, replaced):
    """Run the commands of a page in one shell, because some use what an earlier one has found; compare what they print."""
    commands = []
    for file, content, command, _ in page:
        if file:
            (folder / file).write_text(content.replace(replaced, url))
        else:
            commands.append(f"echo @@@\n{command}")
    script = "\n".join(["set -e", f'python() {{ {sys.executable} "$@"; }}', functions, *commands])
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = [(command, printed) for _, _, command, printed in page if command]
    for (command, printed), output in zip(shown, done.stdout.split("@@@")[1:], strict=True):
        expected = ".*".join(map(re.escape, collapsed(printed).split("...")))
        assert re.fullmatch(expected, collapsed(output)), command


def test_the_commands_about_redis_print_what_the_page_shows(tmp_path):
    server = Server(temporary_folder()).start()
    try:
        functions = f'redis-cli() {{ {sys.executable} {REDIS_CLI} {server.port} "$@"; }}'
        run_commands(REDIS, tmp_path, functions, server.url, "redis://localhost")
    finally:
        server.kill()


POSTGRES = re.findall(f"{FILE}|{COMMAND}", (ROOT / "docs/postgres.md").read_text(), re.MULTILINE)


def test_the_commands_about_postgres_print_what_the_page_shows(tmp_path):
    server = own_server()
    try:
        functions = f'psql() {{ {server.programs.folder / "psql"} {server.url} "$@"; }}'
        run_commands(POSTGRES, tmp_path, functions, server.url, "postgresql://localhost/shop")
    finally:
        server.kill()


def test_every_table_of_the_postgres_store_is_on_its_page():
    page = (ROOT / "docs/postgres.md").read_text()
    for table in re.findall(r"CREATE TABLE \{schema\}\.(\w+)", "".join(migrations())):
        assert f"`{table}`" in page, table


def test_every_key_of_the_redis_store_is_on_its_page():
    page = (ROOT / "docs/redis.md").read_text()
    for key in KEYS:
        fixed = key.name.partition("<")[0]
        assert f"`{fixed}" in page, key.name


HTTP = (ROOT / "docs/http.md").read_text()
CURL = ROOT / "tests/support/curl.py"


def test_the_commands_about_http_print_what_the_page_shows(tmp_path):
    """With ports that are free, and a stand-in for curl."""
    api, service = str(free_port()), str(free_port())
    page = re.findall(f"{FILE}|{COMMAND}", HTTP.replace("8080", api).replace("8081", service), re.MULTILINE)
    for file, content in re.findall(DEFINITION, HTTP.replace("8081", service), re.DOTALL):
        (tmp_path / file).write_text(content)
    python = shlex.quote(sys.executable)
    starts = {"python": python, "curl": f"{python} {CURL}", "resurgam": f"{python} -m resurgam"}
    steps = []
    for file, content, command, printed in page:
        first, _, rest = command.partition(" ")
        shown = f"{starts[first]} {rest}" if command else ""
        if rest.startswith("serve "):
            ready = "until [ -s said.txt ]; do sleep 0.05; done; cat said.txt"
            shown = f"{shown.removesuffix('&')} --port {api} > said.txt &\n{ready}"
        elif rest.endswith("&"):
            shown += f"\nuntil (exec 3<>/dev/tcp/127.0.0.1/{service}) 2> /dev/null; do sleep 0.05; done"
        steps.append((file, content, shown, printed))
    run_commands(steps, tmp_path, "trap 'kill $(jobs -p); wait' EXIT", "", "unchanged")
    check_mounted(tmp_path)


def check_mounted(folder):
    """Run the program of the page that mounts the app, on the store of the commands."""
    asked = """
import api
from starlette.testclient import TestClient
with TestClient(api.api) as client:
    print(client.post("/orders/o-9?cents=100").json())
    print(client.get("/resurgam/health").status_code, client.get("/resurgam/workflows").json()["code"])
"""
    (folder / "asked.py").write_text(asked)
    assert run("python asked.py", folder).splitlines() == ["1.00 for o-9", "200 no_key"]


def test_the_page_about_http_has_every_route_with_its_role():
    shown = re.findall(r"^\| `([A-Z]+) (/\S+)` \| (\w*) *\| (.+) \|$", HTTP, re.MULTILINE)
    assert shown == [(row.method, row.path, row.role or "", row.summary) for row in ENDPOINTS]


def test_every_file_and_command_about_http_is_used():
    found = re.findall(f"{FILE}|{COMMAND}", HTTP, re.MULTILINE)
    assert [file for file, *_ in found if file] == ["shop.py", "prices.py", "api.py"]
    assert len([command for _, _, command, _ in found if command]) == HTTP.count("\n    $ ")
    assert HTTP.count("```") == 2 * 4


API_BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs/workflow-api.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("block", API_BLOCKS, ids=lambda block: re.search(r"async def (\w+)\(ctx", block)[1])
async def test_a_block_of_the_api_guide_runs(block, monkeypatch):
    """Each block gets a registry of its own."""
    registry = Registry()
    for decorator in ("workflow", "activity"):
        monkeypatch.setattr(f"resurgam.{decorator}", getattr(registry, decorator))
    names: dict[str, object] = {}
    exec(compile(block, "docs/workflow-api.md", "exec"), names)
    async with Environment(registry=registry) as env:
        await names["example"](env)


RETENTION_BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs/retention.md").read_text(), re.DOTALL)


async def test_the_blocks_on_retention_run(tmp_path, monkeypatch):
    """The first block opens an engine on a store, the second takes an environment."""
    for number, block in enumerate(RETENTION_BLOCKS):
        registry = Registry()
        for decorator in ("workflow", "activity"):
            monkeypatch.setattr(f"resurgam.{decorator}", getattr(registry, decorator))
        monkeypatch.setattr("resurgam.engine.default_registry", registry)
        names: dict[str, object] = {}
        exec(compile(block, "docs/retention.md", "exec"), names)
        if number == 0:
            await names["example"](f"sqlite:///{tmp_path}/shop.db")
        else:
            async with Environment(registry=registry) as env:
                await names["example"](env)
    assert len(RETENTION_BLOCKS) == 2


def test_the_api_guide_has_blocks():
    assert len(API_BLOCKS) >= 7


PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_files_that_exist(page):
    """A path is relative to the repository or to the package; a link, to the page."""
    text = page.read_text()
    paths = re.findall(r"`([\w.-]+/[\w./-]*\.(?:py|sql|json|txt))`", text)
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)

    assert [path for path in paths if not any((root / path).exists() for root in (ROOT, ROOT / "src/resurgam"))] == []
    assert [link for link in links if not (page.parent / link).exists()] == []
