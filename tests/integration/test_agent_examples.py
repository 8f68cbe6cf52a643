"""The programs of examples/agents: agents of three frameworks, killed after every event and as processes."""

import asyncio
import importlib.util
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import agents
import pydantic_ai
import pytest
from pydantic_ai.capabilities import UseThreadExecutor

import resurgam
from resurgam import Context, Engine, Registry, errors
from resurgam.core import event as events
from resurgam.testing import crash_everywhere
from resurgam.testing.crash import Crashes, sweep
from resurgam.testing.simulation import Simulation
from support.limits import HANGS

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples/agents"
ANSWERS = events.ActivityCompleted | events.OperationCompleted
PROGRAMS = {
    "pydantic_ai_agent": (
        *("travel", "To Rome and Oslo!"),
        ["the model is asked, with 1 messages", "the model is asked, with 3 messages"],
        ["a ticket to Rome is bought", "a ticket to Oslo is bought"],
        "Booked: ticket to Rome, ticket to Oslo.",
    ),
    "openai_agent": (
        *("complaint", "Order o-1 is broken."),
        ["the model is asked, with 1 items", "the model is asked, with 3 items"],
        ["4200 cents are paid back for o-1"],
        "Done: 4200 cents for o-1.",
    ),
    "langgraph_agent": (
        *("restock", "We have no tea and no milk."),
        ["the model is asked, with 1 messages", "the model is asked, with 4 messages"],
        ["tea is ordered", "milk is ordered"],
        "Ordered: a box of tea, a box of milk.",
    ),
}
TOOLS = {"pydantic_ai_agent": "buy_ticket", "openai_agent": "pay_back", "langgraph_agent": "send_order"}
ALLOWED = {
    "pydantic_ai_agent": "pydantic_ai,pydantic",
    "openai_agent": "agents",
    "langgraph_agent": "langgraph,langchain_core",
}
each_program = pytest.mark.parametrize("name", PROGRAMS)


@pytest.fixture
def load(monkeypatch):
    """Import an example with a registry of its own, since the examples use the same names."""

    def load(name):
        registry = Registry()
        monkeypatch.setattr(resurgam, "activity", registry.activity)
        monkeypatch.setattr(resurgam, "workflow", registry.workflow)
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module, registry

    return load


def answered(log):
    """Return the names of the calls that a history has answers to."""
    names = {entry.seq: entry.name for entry in log}
    return [names[entry.ref] for entry in log if isinstance(entry, ANSWERS)]


@each_program
async def test_an_agent_that_is_killed_after_any_event_asks_for_each_answer_once(name, load):
    module, registry = load(name)
    function, wish, questions, effects, _ = PROGRAMS[name]
    runs = []

    def simulation(at):
        printed = []
        module.print = printed.append  # the model and the tools print a line each
        runs.append((at, printed))
        return Simulation(vars(module)[function], wish, at=at, keep=at is None, registry=registry)

    crashes = await sweep(simulation)

    assert isinstance(crashes, Crashes)
    assert crashes.history[-2].type == "workflow_completed"
    (_, whole), *resumed = runs
    assert len(resumed) == crashes.points
    assert sorted(whole) == sorted(questions + effects)
    for at, printed in resumed:
        done = answered(at.store.executions[at.execution_id].full_log)
        assert [line for line in printed if line in questions] == questions[done.count("ask_model") :]
        assert len([line for line in printed if line in effects]) == len(effects) - done.count(TOOLS[name])


KILLED = """
import os, runpy, signal, sys
printed, last = [], int(sys.argv.pop())
def report(line):
    print(line, flush=True)
    printed.append(line)
    if len(printed) == last:
        os.kill(os.getpid(), signal.SIGKILL)
sys.argv.pop(0)
runpy.run_path(sys.argv[0], init_globals={"print": report}, run_name="__main__")
"""


def run_until(name, line, folder):
    """Run an example on a file; kill the process while it makes the call that prints this line."""
    command = [sys.executable, "-W", "error", "-c", KILLED, EXAMPLES / f"{name}.py", "sqlite:///agent.db", str(line)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=HANGS, check=False
    )
    assert done.returncode == (-signal.SIGKILL if line else 0), done.stderr
    return done.stdout.splitlines()


@each_program
def test_an_agent_whose_process_is_killed_continues_in_the_next(name, tmp_path):
    """The first process dies in a tool, the second in its second call, before that is recorded."""
    _, _, questions, effects, result = PROGRAMS[name]

    first, second, third = (run_until(name, line, tmp_path) for line in (2, 2, 0))

    assert first == [questions[0], effects[0]]
    assert questions[0] not in second + third
    assert set(effects) <= {*first, *second, *third}
    assert third[-2:] == [questions[1], result]
    assert run_until(name, 0, tmp_path) == [result]


@each_program
async def test_a_cancelled_agent_ends_while_it_waits_for_a_tool(name, load):
    module, registry = load(name)
    function, wish, *_ = PROGRAMS[name]
    module.print = str
    begun = asyncio.Event()

    async def wait(*_):
        begun.set()
        await asyncio.Event().wait()

    registry.replace(TOOLS[name], wait)
    async with Engine("memory://", registry=registry, grace=0) as engine:
        handle = await engine.start(vars(module)[function], wish)
        await begun.wait()
        await handle.cancel()
        with pytest.raises(errors.WorkflowCancelled):
            await handle.result(timeout=HANGS)


@each_program
async def test_an_agent_is_evicted_and_resumed_at_every_step(name, load):
    """Without a cache each step begins with a replay, and ends with the code unwound."""
    module, registry = load(name)
    function, wish, questions, effects, result = PROGRAMS[name]
    printed = []
    module.print = printed.append
    async with Engine("memory://", registry=registry, cache_size=0) as engine:
        assert await engine.execute(vars(module)[function], wish) == result
    assert sorted(printed) == sorted(questions + effects)


async def test_a_tool_of_openai_agents_may_be_a_plain_function(load, monkeypatch):
    module, registry = load("openai_agent")
    module.print = str

    def refund(order: str, cents: int) -> str:
        return f"nothing for {order}"

    monkeypatch.setattr(module.agent, "tools", [agents.function_tool(refund)])
    crashes = await crash_everywhere(module.complaint, "", registry=registry)

    assert bytes(crashes.history[-2].result) == b'"Done: nothing for o-1."'


async def test_a_tool_of_pydantic_ai_may_be_a_plain_function(load):
    module, registry = load("pydantic_ai_agent")
    module.print = str
    agent = pydantic_ai.Agent(module.model)
    threads = UseThreadExecutor(ThreadPoolExecutor())

    @agent.tool_plain
    def book(city: str) -> str:
        return f"no way to {city}"

    @registry.workflow
    async def plain(ctx: Context) -> str:
        return (await agent.run("", model=module.DurableModel(ctx), capabilities=[threads])).output

    crashes = await crash_everywhere(plain, registry=registry)

    assert bytes(crashes.history[-2].result) == b'"Booked: no way to Rome, no way to Oslo."'


@each_program
def test_the_example_runs_in_development_mode_with_the_packages_that_the_page_allows(name):
    variables = {"RESURGAM_DEV": "1", "RESURGAM_DEV_ALLOW": ALLOWED[name]}
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **variables}
    command = [sys.executable, "-W", "error", EXAMPLES / f"{name}.py"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANGS, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == PROGRAMS[name][-1]
    assert done.stderr == ""
    assert f"RESURGAM_DEV_ALLOW={ALLOWED[name]}`" in (ROOT / "docs/how-to/agents.md").read_text()


def test_the_examples_have_no_findings():
    command = [sys.executable, "-m", "resurgam", "lint", *(EXAMPLES / f"{name}.py" for name in PROGRAMS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS, check=False)

    assert done.returncode == 0, done.stdout
    assert done.stdout == "no findings in 3 workflows\n"


def test_every_example_is_tested():
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == sorted(PROGRAMS)
