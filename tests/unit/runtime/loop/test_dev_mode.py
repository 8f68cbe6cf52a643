"""With ``RESURGAM_DEV=1`` forbidden calls are refused with their source; without it nothing is watched."""

import asyncio
import gc
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from resurgam.core.errors import NotDeterministic
from resurgam.runtime.definitions.definition import Workflow
from resurgam.runtime.loop import dev_mode, event_loop, guard
from resurgam.runtime.registry import Registry
from resurgam.testing import Environment, Simulation
from support.limits import HANGS

SRC = str(Path(__file__).parents[4] / "src")


PRELUDE = """\
import copy, datetime, importlib, logging, os, pathlib, random, secrets, subprocess, tempfile, time, traceback, uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from zoneinfo import ZoneInfo

@dataclass(frozen=True)
class Key:
    name: str = "x"

class Finalized:
    def __del__(self):
        time.monotonic()

def call():
"""
REFUSED = {
    "time.time()": "RS101 clock: time.time()",
    "time.monotonic()": "RS101 clock: time.monotonic()",
    "time.sleep(0)": "RS102 sleep: time.sleep()",
    "datetime.datetime.now()": "RS101 clock: datetime.datetime.now()",
    "datetime.date.today()": "RS101 clock: datetime.date.today()",
    "random.random()": "RS103 random: random.random()",
    "random.randint(1, 2)": "RS103 random: random.randint()",
    "random.Random()": "RS103 random: random.Random()",
    "secrets.token_hex()": "RS103 random: secrets.token_hex()",
    "os.urandom(3)": "RS103 random: os.urandom()",
    "uuid.uuid4()": "RS104 uuid: uuid.uuid4()",
    "open(os.devnull).close()": "RS105 io: open()",
    "pathlib.Path(os.devnull).read_text()": "RS105 io: Path.read_text()",
    'os.listdir("/")': "RS105 io: os.listdir()",
    "tempfile.mkdtemp()": "RS105 io: tempfile.mkdtemp()",
    'subprocess.run(["true"])': "RS105 io: subprocess.run()",
    'print("never said")': "RS106 output: print()",
    'logging.getLogger("x").warning("never said")': "RS106 output: Logger.warning()",
    "ThreadPoolExecutor(1)": "RS107 threads: concurrent.futures.ThreadPoolExecutor()",
    'os.getenv("X")': "RS108 environment: os.getenv()",
    'os.environ["PATH"]': "RS108 environment: os.environ in",
    'os.environ.get("X")': "RS108 environment: os.environ in",
    "id(3)": "RS109 identity: id()",
    'hash("x")': "RS109 identity: hash()",
}
FINE = (
    "random.Random(3).random()",
    "uuid.uuid5(uuid.NAMESPACE_DNS, 'x')",
    "datetime.datetime.fromtimestamp(3, datetime.UTC)",
    "time.localtime(3)",
    "ZoneInfo('Europe/Paris')",
    "importlib.reload(importlib.import_module('colorsys'))",
    "traceback.format_stack()",
    "{Key(): 1}",
    "copy.deepcopy([[1], [2]])",
    "Finalized()",
    "time.time()  # resurgam: allow clock",
    "time.time()  # resurgam: allow RS101",
    "(lambda: time.time())()  # resurgam: allow clock",
    "# resurgam: allow clock\n    time.time()",
)


@pytest.fixture
def watched(monkeypatch):
    """Enable development mode, as the environment variable does in a new process."""
    ticking = dev_mode.enable()
    monkeypatch.setattr(event_loop, "ticking", ticking)
    monkeypatch.setattr(guard, "ticking", ticking)
    yield ticking
    dev_mode._IN_C.clear()
    dev_mode._IN_PYTHON.clear()


async def outcome_of(call) -> str:
    """Call a function in a workflow, and return the outcome."""
    outcomes = []

    async def flow(ctx):
        await ctx.sleep(1)
        try:
            call()
        except NotDeterministic as error:
            outcomes.append(str(error))
        else:
            outcomes.append("fine")

    await Simulation(Workflow("flow", flow, "default")).run()
    return outcomes[-1]


def made_of(code: str, path: Path) -> Callable[[], object]:
    """Return a function with this code, written to a file so that its comments can be read."""
    path.write_text(f"{PRELUDE}    {code}\n")
    names: dict[str, Callable[[], object]] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    return names["call"]


@pytest.mark.parametrize("code", REFUSED)
async def test_a_forbidden_call_is_refused_with_its_source(watched, tmp_path, code):
    text = await outcome_of(made_of(code, tmp_path / "shop.py"))

    assert text.startswith(f"{tmp_path}/shop.py:{PRELUDE.count(chr(10)) + 1}: {REFUSED[code]}")
    assert " in workflow code: " in text


@pytest.mark.parametrize("code", FINE)
async def test_deterministic_calls_are_allowed(watched, tmp_path, code):
    assert await outcome_of(made_of(code, tmp_path / "shop.py")) == "fine"


async def test_a_comment_allows_nothing_else(watched, tmp_path):
    text = await outcome_of(made_of("time.time()  # resurgam: allow uuid", tmp_path / "shop.py"))

    assert "RS101 clock: time.time()" in text


@pytest.mark.parametrize("code", ["time.time()", "os.getenv('X')", "pathlib.Path(os.devnull).read_text()", "id(3)"])
async def test_nothing_is_watched_without_the_environment_variable(tmp_path, code):
    assert await outcome_of(made_of(code, tmp_path / "shop.py")) == "fine"
    assert sys.getprofile() is None


async def test_all_verbs_of_a_context_are_allowed(watched, caplog):
    def flow_code(ctx):
        ctx.random.randint(1, 3)
        ctx.random.random()
        ctx.uuid4()
        ctx.now()
        ctx.info.entity_id.upper()
        ctx.logger.warning("said once")
        ctx.set("a", 1)

    async def flow(ctx):
        flow_code(ctx)
        await asyncio.gather(ctx.sleep(1), asyncio.sleep(2))
        async with asyncio.timeout(5):
            await asyncio.wait_for(ctx.sleep(1), 3)

    await Simulation(Workflow("flow", flow, "default")).run()
    assert "said once" in caplog.text


async def test_calls_are_still_watched_after_a_refusal_was_caught(watched):
    outcomes = []

    async def flow(ctx):
        for _ in range(3):
            try:
                time.monotonic()
            except NotDeterministic:
                outcomes.append("refused")
            await asyncio.sleep(0)

    await Simulation(Workflow("flow", flow, "default")).run()
    assert outcomes[:3] == ["refused"] * 3


async def test_activities_and_operations_are_not_watched(watched):
    registry = Registry()

    @registry.activity
    async def act() -> bool:
        return time.monotonic() > 0

    @registry.workflow
    async def wrong(ctx) -> None:
        time.monotonic()

    @registry.workflow
    async def right(ctx) -> bool:
        return await ctx.activity(act) and await ctx.run(time.monotonic) > 0

    async with Environment(registry=registry) as env:
        handle = await env.start(wrong)
        error = (await handle.describe()).error
        result = await env.finish(env.engine.execute(right))

    assert isinstance(error, NotDeterministic)
    assert "RS101 clock: time.monotonic()" in str(error)
    assert result is True
    assert sys.getprofile() is None


async def test_finalizers_run_by_the_garbage_collector_are_allowed(watched):
    outcomes = []

    def note(*_: object) -> None:
        outcomes.append(time.monotonic())

    gc.callbacks.append(note)
    try:
        assert await outcome_of(gc.collect) == "fine"
    finally:
        gc.callbacks.remove(note)
    assert outcomes


async def test_another_profiler_is_not_replaced(watched):
    seen = []
    sys.setprofile(lambda *_: seen.append(1))
    try:
        assert await outcome_of(time.monotonic) == "fine"
        assert sys.getprofile() is not None
    finally:
        sys.setprofile(None)
    assert seen


NEWER = {"uuid.uuid6", "uuid.uuid7"}
"""Names that only later versions of Python have."""


def test_every_name_of_the_table_exists_in_python(watched):
    """A misspelt name would never be refused."""
    assert {name for name, found in dev_mode._functions() if found is None} <= NEWER


LIBRARY = """
import time

def reads():
    return time.time()

def calls(back):
    return back()
"""


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Return a module of an installed package."""
    folder = tmp_path / "site-packages" / "clockwork"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "hands.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(folder.parent)
    yield importlib.import_module("clockwork.hands")
    for name in ("clockwork.hands", "clockwork"):
        del sys.modules[name]


async def test_a_library_that_is_refused_can_be_allowed_by_its_package(watched, library, monkeypatch):
    refused = await outcome_of(library.reads)
    assert "clockwork/hands.py:5: RS101 clock: time.time() in workflow code: " in refused
    assert refused.endswith("allow the package: RESURGAM_DEV_ALLOW=clockwork")

    monkeypatch.setattr(dev_mode, "_packages", dev_mode.read_packages(" clockwork , other,"))
    assert await outcome_of(library.reads) == "fine"
    assert await outcome_of(lambda: library.calls(library.reads)) == "fine"
    # The user's code is watched as before, also where the package calls it; other packages too.
    for call in (time.monotonic, lambda: library.calls(lambda: time.monotonic())):  # noqa: PLW0108 -- a frame of ours
        assert "RS101 clock: time.monotonic()" in await outcome_of(call)
    monkeypatch.setattr(dev_mode, "_packages", dev_mode.read_packages("clock,clockwork.other"))
    assert await outcome_of(library.reads) == refused


@pytest.mark.parametrize("text", ["httpx pydantic", "a,-b", "a..b"])
def test_an_invalid_package_list_is_an_error(text):
    with pytest.raises(ValueError, match="RESURGAM_DEV_ALLOW must be names of packages, separated by commas, got"):
        dev_mode.read_packages(text)


PROGRAM = """
import asyncio, gc, logging, sys
from resurgam import Context, Engine, activity, errors, workflow

logging.basicConfig(format="%(name)s %(message)s", stream=sys.stdout)
logging.getLogger("resurgam.workflow").setLevel("CRITICAL")

@activity
async def act(name: str) -> str:
    return name

@workflow
async def forgets(ctx: Context, tags: set[str]) -> str:
    ctx.activity(act, "unheard")
    later = ctx.activity(act, "heard later")
    ctx.activity(act, "called off").cancel()
    for tag in tags:
        await ctx.activity(act, tag)
    await asyncio.gather(ctx.activity(act, "gathered"), later)
    return await ctx.activity(act, "last")

@workflow
async def reads_a_clock(ctx: Context) -> None:
    import time
    time.time()

async def main() -> None:
    async with Engine() as engine:
        print(await engine.execute(forgets, {"a"}))
        try:
            await engine.execute(reads_a_clock)
        except errors.WorkflowFailed as error:
            print(error)
    gc.collect()

asyncio.run(main())
"""


def run(tmp_path, **environment: str) -> list[str]:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    command = [sys.executable, "-W", "error", str(path)]
    options = {"env": {**os.environ, "PYTHONPATH": SRC, **environment}, "capture_output": True, "text": True}
    done = subprocess.run(command, **options, timeout=HANGS, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.replace(str(path), "program.py").splitlines()


def test_the_environment_variable_allows_packages(tmp_path):
    *_, failure = run(tmp_path, RESURGAM_DEV="1", RESURGAM_DEV_ALLOW="other")
    assert "RS101 clock" in failure
    assert run(tmp_path, RESURGAM_DEV="1", RESURGAM_DEV_ALLOW="__main__")[-1] == "last"


def test_the_environment_variable_enables_development_mode(tmp_path):
    sets, unheard, result, failure = run(tmp_path, RESURGAM_DEV="1")

    assert sets.startswith("resurgam.dev program.py:17:16: RS201 sets: the order of tags in workflow forgets: ")
    assert unheard.startswith("resurgam.dev program.py:14: RS202 unawaited: Task(0) (act) was never awaited: ")
    assert result == "last"
    assert "NotDeterministic: program.py:25: RS101 clock: time.time() in workflow code: " in failure


@pytest.mark.parametrize("value", ["0", ""])
def test_without_the_environment_variable_nothing_is_logged(tmp_path, value):
    assert run(tmp_path, RESURGAM_DEV=value) == ["last"]
