"""Calls that bypass the workflow's event loop are refused in workflow code, and only there."""

import asyncio
import concurrent.futures
import logging
import os
import socket
import subprocess
import threading
import urllib.request

import pytest

from resurgam.core import event as events
from resurgam.core.errors import NotDeterministic
from resurgam.runtime.context.context import Context
from resurgam.runtime.definitions.definition import Workflow
from resurgam.runtime.execution.execution import Execution
from resurgam.runtime.loop.guard import guarded
from resurgam.runtime.registry import Registry
from resurgam.testing import Environment, Simulation, replay
from resurgam.testing.simulation import START, start_event

REMEDY = "it cannot be replayed; put it into an activity and call ctx.activity(...), or ctx.run(...) if it is short"


def start_thread():
    thread = threading.Thread(target=int, daemon=True)
    thread.start()
    thread.join()


def submit():
    executor = concurrent.futures.ThreadPoolExecutor(1)
    try:
        executor.submit(int).result()
    finally:
        executor.shutdown(wait=False)


def run_command():
    subprocess.run(["true"], check=True)


def run_in_shell():
    assert os.system("true") == 0


def open_socket():
    socket.socket().close()


def open_connection():
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=5).close()


REFUSED = {
    "threading.Thread": (start_thread, "thread"),
    "ThreadPoolExecutor": (submit, "thread"),
    "subprocess.run": (run_command, "subprocess.Popen"),
    "os.system": (run_in_shell, "os.system"),
    "socket.socket": (open_socket, "socket.__new__"),
    "socket.create_connection": (lambda: socket.create_connection(("127.0.0.1", 9)), "socket.getaddrinfo"),
    "urlopen": (lambda: urllib.request.urlopen("http://127.0.0.1:9/", timeout=5), "socket.getaddrinfo"),
}
ALLOWED = {
    "threading.Thread": start_thread,
    "ThreadPoolExecutor": submit,
    "subprocess.run": run_command,
    "os.system": run_in_shell,
    "socket.socket": open_socket,
    "socket.create_connection": open_connection,
}


def workflow_of(function):
    return Workflow(function.__name__, function, "default")


async def result_of(function):
    """Run a workflow in a simulation, and return its recorded result."""
    workflow = workflow_of(function)
    history = await Simulation(workflow).run()
    return (await replay(workflow, history)).result


# Refused.


@pytest.mark.parametrize("name", REFUSED)
async def test_calls_that_cannot_be_replayed_are_refused_in_workflow_code(name):
    """The error names the call and the remedy."""
    call, called = REFUSED[name]
    messages = []

    async def forbidden(ctx):
        with pytest.raises(NotDeterministic) as found:
            call()
        messages.append(str(found.value))

    await Simulation(workflow_of(forbidden)).run()

    [text] = messages
    name_of_call, remedy = text.split(" in workflow code: ")
    assert called in name_of_call
    assert remedy == REMEDY


async def test_forbidden_calls_are_refused_after_a_wait_and_in_a_task_too():
    """Every tick is guarded, not only the first."""
    messages = []

    async def forbidden(ctx):
        async def strand():
            await ctx.sleep(1)
            with pytest.raises(NotDeterministic) as found:
                open_socket()
            messages.append(str(found.value))

        await asyncio.gather(strand(), strand())

    await Simulation(workflow_of(forbidden)).run()

    assert messages == [f"socket.__new__ in workflow code: {REMEDY}"] * 2


async def test_a_workflow_with_a_forbidden_call_fails_and_its_worker_continues():
    """The run fails; activities in threads still run."""
    registry = Registry()

    @registry.activity
    def threaded() -> str:
        return threading.current_thread().name

    @registry.workflow
    async def forbidden(ctx: Context) -> None:
        open_socket()

    @registry.workflow
    async def asks(ctx: Context) -> str:
        return await ctx.activity(threaded)

    async with Environment(registry=registry) as env:
        handle = await env.start(forbidden)
        error = (await handle.describe()).error
        name = await env.finish(env.engine.execute(asks))

    assert isinstance(error, NotDeterministic)
    assert name == "activity threaded"


# Allowed.


@pytest.mark.parametrize("name", ALLOWED)
def test_forbidden_calls_are_allowed_outside_workflows(name):
    """The hook does nothing while no tick is running."""
    ALLOWED[name]()


@pytest.mark.parametrize("name", ALLOWED)
async def test_forbidden_calls_are_allowed_in_activities_and_operations(name):
    """Async and threaded activities, plain and async operations."""
    registry = Registry()
    call = ALLOWED[name]

    @registry.activity
    def threaded() -> str:
        call()
        return "threaded"

    @registry.activity
    async def awaited() -> str:
        call()
        return "awaited"

    async def operation() -> str:
        call()
        return "async"

    def plain() -> str:
        call()
        return "plain"

    @registry.workflow
    async def allowed(ctx: Context) -> list[str]:
        return [
            await ctx.activity(threaded),
            await ctx.activity(awaited),
            await ctx.run(operation),
            await ctx.run(plain),
        ]

    async with Environment(registry=registry) as env:
        result = await env.finish(env.engine.execute(allowed))

    assert result == ["threaded", "awaited", "async", "plain"]


@pytest.mark.parametrize("name", ALLOWED)
async def test_forbidden_calls_are_allowed_in_a_logging_handler(name):
    """A handler may send its records anywhere; the code after it is guarded again."""
    handled = []

    class Sending(logging.Handler):
        def emit(self, record):
            ALLOWED[name]()
            handled.append(record.getMessage())

    async def logs(ctx):
        for say in (ctx.logger.info, ctx.logger.warning, ctx.logger.error):
            say("hello %s", "world")
        with pytest.raises(NotDeterministic):
            open_socket()

    logger = logging.getLogger("resurgam.workflow.logs")
    handler = Sending()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel("INFO")
    try:
        await Simulation(workflow_of(logs)).run()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)

    assert handled == ["[simulated] hello world"] * 3


async def test_the_guard_applies_to_the_ticking_thread_during_a_tick_only():
    """The guard is active in the thread that runs the workflow, during its ticks."""
    begin, done = threading.Event(), threading.Event()
    failed = []

    def beside():
        begin.wait(30)
        try:
            open_socket()
        except NotDeterministic as error:
            failed.append(error)
        done.set()

    thread = threading.Thread(target=beside, daemon=True)
    thread.start()

    async def waits(ctx):
        begin.set()
        done.wait(30)

    await Simulation(workflow_of(waits)).run()
    open_socket()
    thread.join()

    assert failed == []


def test_the_guard_is_restored():
    """Guards nest, and end with an exception too."""
    with guarded():
        with guarded(on=False):
            open_socket()
        with pytest.raises(NotDeterministic):
            open_socket()
        with pytest.raises(KeyError), guarded(on=False):
            raise KeyError
        with pytest.raises(NotDeterministic):
            open_socket()
    open_socket()


# Tasks.


async def test_all_tasks_is_refused_in_workflow_code():
    """Its set is ordered by addresses, which differ on replay."""
    messages = []

    async def looks(ctx):
        beside = asyncio.create_task(asyncio.sleep(1))
        for ask in (asyncio.all_tasks, lambda: asyncio.all_tasks(asyncio.get_running_loop())):
            with pytest.raises(NotDeterministic) as found:
                ask()
            messages.append(str(found.value))
        await beside

    await Simulation(workflow_of(looks)).run()

    assert (
        messages
        == ["asyncio.all_tasks() returns tasks in an order that differs from run to run; keep a list of your own"] * 2
    )


async def test_all_tasks_works_outside_while_workflows_are_alive():
    """The program gets its own tasks, and none of a workflow's."""

    async def waits(ctx):
        await asyncio.gather(ctx.listen("a"), asyncio.create_task(asyncio.sleep(100)))

    workflow = workflow_of(waits)
    execution = Execution(workflow, [start_event(workflow, ())])
    execution.advance([], START)
    seen = asyncio.all_tasks()
    inside = asyncio.all_tasks(execution.recorder.loop)
    execution.close()

    assert asyncio.current_task() in seen
    assert not any(task.get_loop() is execution.recorder.loop for task in seen)
    assert len(inside) == 2


async def test_all_tasks_works_in_operations():
    """The worker runs operations outside ticks."""

    async def looks(ctx):
        return await ctx.run(lambda: len(asyncio.all_tasks()) > 0, name="look")

    assert await result_of(looks) is True


async def test_setting_an_event_of_another_workflow_is_refused():
    """Setting it would wake code of another run without an entry in that run's history."""
    shared = []
    messages = []

    async def waits(ctx):
        event = asyncio.Event()
        shared.append(event)
        await event.wait()

    async def touches(ctx):
        with pytest.raises(NotDeterministic) as found:
            shared[0].set()
        messages.append(str(found.value))
        await ctx.sleep(1)

    waiting = workflow_of(waits)
    execution = Execution(waiting, [start_event(waiting, ())])
    execution.advance([], START)
    history = await Simulation(workflow_of(touches)).run()
    outcome = execution.advance([], START)
    execution.close()

    assert [entry.type for entry in history] == [
        "workflow_started",
        "timer_started",
        "timer_fired",
        "workflow_completed",
        "workflow_deactivated",
    ]
    assert "such as an asyncio.Event that two workflows share; send a signal instead" in messages[0]
    assert outcome.events == ()
    assert outcome.status == "running"


async def test_tasks_have_the_same_names_on_replay():
    """They are named by their location: asyncio's own names count the tasks of the process."""

    async def names(ctx):
        async def name():
            await asyncio.sleep(0)
            return asyncio.current_task().get_name()

        first = asyncio.create_task(name())
        named = asyncio.create_task(name(), name="mine")
        async with asyncio.TaskGroup() as group:
            grouped = group.create_task(name())
        found = await asyncio.gather(first, named, grouped, name(), asyncio.wait_for(name(), 5))
        return [asyncio.current_task().get_name(), *found[:4]]

    workflow = workflow_of(names)
    history = await Simulation(workflow).run()
    for _ in range(5):
        await asyncio.create_task(asyncio.sleep(0))
    replayed = await replay(workflow, history)
    ended = next(entry for entry in history if isinstance(entry, events.WorkflowCompleted))

    assert replayed.diverged is None
    assert replayed.result == ["Task root", "Task {1}", "mine", "Task {3}", "Task {4}"]
    assert bytes(ended.result) == b'["Task root","Task {1}","mine","Task {3}","Task {4}"]'
