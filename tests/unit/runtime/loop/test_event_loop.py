"""The deterministic event loop: one test for each trap of asyncio that it handles, and for each guarantee."""

import asyncio
import contextlib
import gc
import sys
import threading
from functools import partial

import pytest

from resurgam.core import event as events
from resurgam.core.errors import NotDeterministic
from resurgam.core.state import Status
from resurgam.runtime.definitions.definition import Workflow
from resurgam.runtime.execution.execution import Execution
from resurgam.runtime.execution.general_course import TICKS_PER_ADVANCE
from resurgam.runtime.loop.event_loop import _FORBIDDEN, WorkflowLoop
from resurgam.runtime.loop.guard import guarded
from resurgam.runtime.loop.outside_task import run_outside_task
from resurgam.runtime.registry import Registry
from resurgam.testing.simulation import START, Simulation, start_event

registry = Registry()


@registry.activity
async def echo(x):
    return x


_begun = []


@pytest.fixture(autouse=True)
def put_away():
    """Close the executions that a failed test has left open."""
    yield
    while _begun:
        _begun.pop().close()


def begin(function):
    """Return the execution of a workflow function that has not been advanced yet."""
    workflow = Workflow(function.__name__, function, "default")
    _begun.append(Execution(workflow, [start_event(workflow, ())]))
    return _begun[-1]


def advance(function):
    """Start a workflow and return the execution and the outcome of its first advance."""
    execution = begin(function)
    return execution, execution.advance([], START)


async def run(function, **options):
    """Run a workflow to its end and return its simulation."""
    simulation = Simulation(Workflow(function.__name__, function, "default"), registry=registry, **options)
    await simulation.run()
    return simulation


async def result(function):
    """Run a workflow to its end and return its result."""
    simulation = await run(function)
    (end,) = [entry for entry in simulation.log if isinstance(entry, events.WorkflowCompleted)]
    return simulation.workflow.result.decode(end.result, "result")


def places(log):
    """Return the locations of a history's commands, by name or kind."""
    return [(entry.name or entry.type, str(entry.location)) for entry in log if isinstance(entry, events.Command)]


# Sets of futures.


def some_futures(ctx, found):
    """Put one future of each kind into *found*."""

    async def nothing():
        await ctx.sleep(1)

    found["activity"] = ctx.activity(echo, 1)
    found["timer"] = ctx.sleep(1)
    found["task"] = asyncio.create_task(nothing())
    found["branch"] = ctx.branch(lambda _: nothing())
    found["race"] = ctx.race(nothing())
    found["bare"] = asyncio.get_running_loop().create_future()
    found["until"] = ctx.until(lambda: False)
    found["gather"] = asyncio.gather(nothing(), nothing())
    found["shield"] = asyncio.shield(found["task"])
    for future in found.values():
        hash(future)


def hashes_of_one_execution():
    found = {}

    async def workflow(ctx):
        some_futures(ctx, found)
        await ctx.sleep(1)

    execution, _ = advance(workflow)
    hashes = {name: hash(future) for name, future in found.items()}
    execution.close()
    return hashes, found


def test_futures_have_the_same_hashes_in_every_execution():
    first, kept = hashes_of_one_execution()  # kept alive, so that no address is used twice
    second, _ = hashes_of_one_execution()
    assert first == second
    assert len(set(first.values())) == len(kept)


def test_no_future_hashes_by_its_address():
    hashes, found = hashes_of_one_execution()
    assert not [name for name, future in found.items() if hashes[name] == object.__hash__(future)]


def test_sets_of_futures_iterate_in_the_same_order_in_every_execution():
    orders, keep = [], []
    for _ in range(5):
        found = hashes_of_one_execution()[1]
        keep.append(found)
        names = {future: name for name, future in found.items()}
        orders.append([names[future] for future in set(found.values())])
    assert orders == [orders[0]] * 5


async def test_on_other_loops_a_gathering_future_hashes_by_identity():
    gathered = asyncio.gather(asyncio.sleep(0), asyncio.sleep(0))
    assert hash(gathered) == object.__hash__(gathered)
    done, _ = await asyncio.wait({gathered})
    assert done == {gathered}


# as_completed and wait_for.


async def test_as_completed_over_bare_coroutines_is_refused_with_a_remedy():
    async def workflow(ctx):
        async def one():
            await ctx.activity(echo, 1)

        with pytest.raises(
            NotDeterministic, match=r"create the tasks first: asyncio\.as_completed\(\[asyncio\.create_"
        ):
            for next_one in asyncio.as_completed([one()]):
                await next_one
        return [await next_one for next_one in asyncio.as_completed([asyncio.create_task(one())])]

    assert await result(workflow) == [None]


async def test_wait_for_stays_in_the_scope_of_its_caller():
    async def workflow(ctx):
        async def step(x):
            await ctx.activity(echo, x)

        await asyncio.wait_for(step(1), 5)
        await asyncio.wait_for(step(2), None)
        await ctx.activity(echo, 3)

    log = (await run(workflow)).log
    assert places(log) == [("timer_started", "{1}"), ("echo", "{2}"), ("echo", "{3}"), ("echo", "{4}")]


async def test_a_scope_continues_after_wait_for_on_replay_too():
    async def workflow(ctx):
        async def step():
            await ctx.activity(echo, 1)

        await asyncio.wait_for(step(), 5)
        await ctx.activity(echo, 2)

    log = (await run(workflow)).log
    replayed = await run(workflow, log=log)
    assert (replayed.status, replayed.log) == (Status.COMPLETED, log)


@pytest.mark.parametrize(("limit", "first"), [(5, 2), (None, 1)])  # without a limit 3.11 too awaits without a task
async def test_tasks_created_under_a_timeout_have_scopes_of_their_own(limit, first):
    async def workflow(ctx):
        async def step(x):
            await ctx.activity(echo, x)

        async def deeper():
            await asyncio.create_task(step(1))
            await asyncio.ensure_future(step(2))
            await asyncio.gather(step(3))
            async with asyncio.TaskGroup() as group:
                group.create_task(step(4))
            await asyncio.shield(step(5))

        await asyncio.wait_for(deeper(), limit)

    found = [place for name, place in places((await run(workflow)).log) if name == "echo"]
    assert found == [f"{{{first + number}, 1}}" for number in range(5)]


async def test_wait_for_does_not_shift_later_hashes():
    """Python 3.11 makes futures for it and later versions do not; the order of sets must not depend on that."""

    def workflow_that(waits):
        async def workflow(ctx):
            async def nothing():
                return None

            if waits:
                await asyncio.wait_for(nothing(), 5)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.get_running_loop().create_future(), 1)
            return hash(asyncio.get_running_loop().create_future())

        return workflow

    assert await result(workflow_that(waits=True)) == await result(workflow_that(waits=False))


# Asynchronous generators, and the state that a tick restores.


async def test_an_abandoned_generator_is_not_finalised_by_the_garbage_collector():
    events_of_generator = []

    async def workflow(ctx):
        async def generate():
            try:
                yield 1
                yield 2
            finally:
                events_of_generator.append("clean-up")

        async for _ in generate():
            break
        gc.collect()
        await ctx.activity(echo, 1)
        gc.collect()
        events_of_generator.append("end of the workflow")

    await run(workflow)
    assert events_of_generator == ["end of the workflow", "clean-up"]


async def test_finished_generators_are_not_kept():
    async def workflow(ctx):
        async def generate():
            yield 1

        for _ in range(10):
            async for _ in generate():
                pass
        await ctx.sleep(1)

    execution, _ = advance(workflow)
    assert len(execution.recorder.loop._generators) == 0
    execution.close()


async def test_a_tick_restores_the_running_loop_of_its_thread():
    seen = []

    async def workflow(ctx):
        seen.append(asyncio.get_running_loop())
        await ctx.sleep(1)

    loop = asyncio.get_running_loop()
    execution = begin(workflow)
    await run_outside_task(lambda: execution.advance([], START))
    assert isinstance(seen[0], WorkflowLoop)
    assert asyncio.get_running_loop() is loop
    execution.close()
    assert asyncio.get_running_loop() is loop


async def test_generators_outside_of_ticks_belong_to_the_outer_loop():
    closed = []

    async def generate(name):
        try:
            yield 1
        finally:
            closed.append((name, asyncio.get_running_loop()))

    async def workflow(ctx):
        begun = generate("workflow")
        await anext(begun)
        await ctx.activity(echo, 1)

    loop = asyncio.get_running_loop()
    execution = begin(workflow)
    await run_outside_task(lambda: execution.advance([], START))
    outside, dropped = generate("kept"), generate("dropped")
    await anext(outside)
    await anext(dropped)
    del dropped
    gc.collect()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert closed == [("dropped", loop)]
    await loop.shutdown_asyncgens()
    assert closed == [("dropped", loop), ("kept", loop)]
    execution.close()
    assert closed[2:] == [("workflow", execution.recorder.loop)]


async def test_a_generator_of_a_run_that_is_dropped_is_not_closed_by_the_outer_loop(monkeypatch):
    closed, handed_over = [], []

    async def workflow(ctx):
        async def generate():
            try:
                yield 1
            finally:
                closed.append(1)

        begun = generate()
        await anext(begun)
        await ctx.activity(echo, 1)

    execution = begin(workflow)
    await run_outside_task(partial(execution.advance, [], START))
    execution.root._log_destroy_pending = False
    monkeypatch.setattr(asyncio.get_running_loop(), "call_soon_threadsafe", lambda *args: handed_over.append(args))
    _begun.remove(execution)
    del execution
    gc.collect()
    assert (closed, handed_over) == ([], [])


def test_without_an_outer_loop_there_is_none_afterwards():
    async def workflow(ctx):
        await ctx.sleep(1)

    execution, _ = advance(workflow)
    execution.close()
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()
    assert sys.get_asyncgen_hooks() == (None, None)


async def test_the_current_task_is_the_workflows_inside_and_the_callers_outside():
    seen = []

    async def workflow(ctx):
        seen.append(asyncio.current_task())
        await ctx.activity(echo, 1)
        seen.append(asyncio.current_task())

    outer = asyncio.current_task()
    simulation = Simulation(Workflow("workflow", workflow, "default"), registry=registry)
    await simulation.run()
    assert asyncio.current_task() is outer
    assert seen == [simulation._live_root.root] * 2


async def test_ticks_are_run_outside_of_any_task_where_the_running_task_is_state_of_the_thread():
    running = await run_outside_task(asyncio.current_task)
    assert (running is None) == (sys.version_info >= (3, 14))


# Forbidden calls.


def own_loop_call(name):
    def call():
        return getattr(asyncio.get_running_loop(), name)()

    return call


THROUGH_ASYNCIO = {
    "run_in_executor": lambda: asyncio.to_thread(print),
    "create_connection": lambda: asyncio.open_connection("localhost", 1),
    "create_server": lambda: asyncio.start_server(print, "localhost", 1),
    "create_unix_connection": lambda: asyncio.open_unix_connection("x"),
    "create_unix_server": lambda: asyncio.start_unix_server(print, "x"),
    "subprocess_exec": lambda: asyncio.create_subprocess_exec("true"),
    "subprocess_shell": lambda: asyncio.create_subprocess_shell("true"),
}
CALLS = [*((name, own_loop_call(name)) for name in _FORBIDDEN), *THROUGH_ASYNCIO.items()]


@pytest.mark.parametrize(("name", "call"), CALLS, ids=[name for name, _ in CALLS])
async def test_a_forbidden_call_is_named_with_a_remedy(name, call):
    async def workflow(ctx):
        try:
            await call()
        except NotDeterministic as error:
            return str(error)

    said = await result(workflow)
    assert said == f"loop.{name}() in workflow code: {_FORBIDDEN[name]}"
    assert any(remedy in said for remedy in ("ctx.activity(", "signal", "engine"))


def test_the_required_loop_methods_are_forbidden():
    wanted = {"run_in_executor", "call_soon_threadsafe", "add_reader", "getaddrinfo", "create_connection", "sock_recv"}
    assert wanted | {"subprocess_exec", "add_signal_handler", "run_until_complete"} <= _FORBIDDEN.keys()


@pytest.mark.parametrize("name", [name for name in dir(asyncio.AbstractEventLoop) if not name.startswith("_")])
async def test_every_loop_method_is_implemented_or_forbidden(name):
    """Every method of a loop works or is refused with a remedy; none is left to asyncio's abstract base."""
    assert getattr(WorkflowLoop, name) is not getattr(asyncio.AbstractEventLoop, name)


async def test_a_coroutine_from_another_thread_is_refused():
    async def workflow(ctx):
        async def one():
            return 1

        coroutine, said = one(), []

        def elsewhere(loop):
            try:
                asyncio.run_coroutine_threadsafe(coroutine, loop)
            except NotDeterministic as error:
                said.append(str(error))

        with guarded(on=False):  # the thread itself would be refused too
            thread = threading.Thread(target=elsewhere, args=[asyncio.get_running_loop()])
            thread.start()
            thread.join()
        coroutine.close()
        return said

    assert await result(workflow) == [
        f"loop.call_soon_threadsafe() in workflow code: {_FORBIDDEN['call_soon_threadsafe']}"
    ]


LIBRARY = """
import asyncio
async def in_thread(function, *args): return await asyncio.to_thread(function, *args)
async def in_executor(function, *args): return await asyncio.get_running_loop().run_in_executor(None, function, *args)
def put(queue, item): asyncio.get_running_loop().call_soon_threadsafe(queue.put_nowait, item)
"""


def library(module, folder="/x/lib/python3.11/site-packages"):
    """Return the names of a module that is installed in a folder."""
    names = {"__name__": module}
    exec(compile(LIBRARY, f"{folder}/{module.replace('.', '/')}.py", "exec"), names)
    return names


@pytest.mark.parametrize(
    "module", ["agents.tool", "langchain_core.runnables.config", "langgraph.call", "pydantic_ai._utils"]
)
@pytest.mark.parametrize("way", ["in_thread", "in_executor"])
async def test_a_synchronous_callback_of_an_agent_framework_runs_as_workflow_code(module, way):
    call = library(module)[way]

    def divide(dividend, divisor):
        assert asyncio.get_running_loop() is not None
        return dividend / divisor

    async def workflow(ctx):
        with pytest.raises(ZeroDivisionError):
            await call(divide, 1, 0)
        return [await call(divide, 6, 2), await ctx.activity(echo, 1)]

    assert await result(workflow) == [3, 1]


@pytest.mark.parametrize(
    ("module", "folder"),
    [("aiofiles.base", "/x/site-packages"), ("agentsmith", "/x/dist-packages"), ("agents.mine", "/home/me/agents")],
    ids=["other package", "similar name", "own package"],
)
async def test_executors_of_other_code_are_refused(module, folder):
    found = library(module, folder)

    async def workflow(ctx):
        for way in ("in_thread", "in_executor"):
            with pytest.raises(NotDeterministic, match="threads and executors cannot be replayed"):
                await found[way](abs, -1)
        with pytest.raises(NotDeterministic, match="another thread may not call into a workflow"):
            found["put"](asyncio.Queue(), 1)
        return True

    assert await result(workflow) is True


async def test_an_agent_framework_may_stream_from_the_thread_of_the_workflow():
    put = library("langgraph.pregel.main")["put"]

    async def workflow(ctx):
        queue = asyncio.Queue()
        put(queue, 1)
        put(queue, 2)
        return [await queue.get(), await queue.get()]

    assert await result(workflow) == [1, 2]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 has no eager tasks")
async def test_an_eager_task_has_a_scope_of_its_own():
    async def workflow(ctx):
        async def one(number):
            return await ctx.activity(echo, number)

        loop = asyncio.get_running_loop()
        tasks = [asyncio.eager_task_factory(loop, one(number), name="x", context=None) for number in range(2)]
        return await asyncio.gather(*tasks)

    simulation = await run(workflow)
    assert places(simulation.log) == [
        *(("branch_started", "{1}"), ("branch_started", "{2}"), ("echo", "{1, 1}"), ("echo", "{2, 1}"))
    ]


@pytest.mark.parametrize("make", [lambda: asyncio.gather(asyncio.sleep(0)), lambda: 1], ids=["gathering", "number"])
async def test_create_task_refuses_what_asyncio_refuses(make):
    async def workflow(ctx):
        try:
            asyncio.create_task(make())  # noqa: RUF006 -- it never begins
        except TypeError as error:
            return "coroutine" in str(error)

    assert await result(workflow) is True


# Calls from outside the workflow.


@pytest.mark.parametrize(
    "use",
    [
        lambda ctx: ctx.activity(echo, 1),
        lambda ctx: ctx.sleep(1),
        lambda ctx: ctx.set("a", 1),
        lambda ctx: ctx.random,
        lambda ctx: ctx.uuid4(),
    ],
    ids=["activity", "sleep", "set", "random", "uuid4"],
)
async def test_a_context_cannot_be_used_outside_its_workflow(use):
    contexts = []

    async def workflow(ctx):
        contexts.append(ctx)
        await ctx.sleep(1)

    async def stranger(ctx):
        with pytest.raises(NotDeterministic, match="outside of that workflow's own code"):
            use(contexts[0])

    execution, _ = advance(workflow)
    with pytest.raises(NotDeterministic, match="outside of that workflow's own code"):
        use(contexts[0])
    await run(stranger)
    assert execution.last_seq == 2
    execution.close()


@pytest.mark.parametrize("use", [lambda ctx: ctx.sleep(1), lambda ctx: ctx.set("a", 1)], ids=["sleep", "set"])
async def test_the_predicate_of_until_makes_no_durable_calls(use):
    async def workflow(ctx):
        try:
            await ctx.until(lambda: use(ctx) or True)
        except NotDeterministic as error:
            said = str(error)
        await ctx.activity(echo, 1)
        return said

    assert "the predicate of ctx.until" in await result(workflow)
    assert places((await run(workflow)).log) == [("echo", "{1}")]


# Eviction.


async def test_eviction_is_invisible():
    seen = []

    async def workflow(ctx):
        try:
            await ctx.activity(echo, 1)
        finally:
            seen.append("clean-up")
            ctx.set("state", "evicted")
            await ctx.activity(echo, 2)
            seen.append("never")

    execution, outcome = advance(workflow)
    before = list(execution.recorder.log.new)
    execution.close()
    assert seen == ["clean-up"]
    assert list(outcome.events) == before == execution.recorder.log.new
    assert execution.last_seq == 2


VERBS = {
    "activity": lambda ctx: ctx.activity(echo, 1),
    "run": lambda ctx: ctx.run(print),
    "sleep": lambda ctx: ctx.sleep(1),
    "listen": lambda ctx: ctx.listen("never"),
    "race": lambda ctx: ctx.race(ctx.sleep(1)),
    "until": lambda ctx: ctx.until(lambda: False),
    "asyncio.sleep": lambda ctx: asyncio.sleep(1),
    "asyncio.create_task": lambda ctx: asyncio.create_task(asyncio.Event().wait()),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python's own word on such code
@pytest.mark.parametrize("verb", VERBS)
def test_a_retry_loop_around_everything_does_not_prevent_eviction(verb):
    held = []

    async def workflow(ctx):
        for _ in range(20_000):  # for ever, were this not a test
            with contextlib.suppress(BaseException):
                await VERBS[verb](ctx)
        held.append(verb)

    execution, outcome = advance(workflow)
    execution.close()
    assert held == []
    assert execution.last_seq == 1 + len(outcome.events)


async def test_cleaning_up_generators_and_tasks_at_an_eviction_records_nothing():
    seen = []

    async def workflow(ctx):
        async def generate():
            try:
                yield await ctx.run(lambda: 1)
            finally:
                seen.append("generator")
                await ctx.sleep(1)

        async def task():
            try:
                await ctx.sleep(5)
            finally:
                seen.append("task")
                asyncio.create_task(task())  # noqa: RUF006 -- it never begins

        async for _ in generate():
            break
        await asyncio.gather(task(), task())

    simulation = Simulation(Workflow("workflow", workflow, "default"), registry=registry)
    await simulation.begin()
    await simulation.step()
    log = list(simulation.log)
    simulation.close()
    assert sorted(seen) == ["generator", "task", "task"]
    assert simulation.log == log
    assert simulation._live_root.last_seq == len(log)


async def test_tasks_that_are_alive_when_the_root_ends_are_closed_silently(caplog):
    seen = []

    async def workflow(ctx):
        async def endless():
            try:
                while True:
                    await ctx.sleep(1)
            finally:
                seen.append("closed")
                await ctx.activity(echo, "never")

        asyncio.create_task(endless())  # noqa: RUF006 -- it is never awaited
        await ctx.sleep(3)

    simulation = await run(workflow)
    gc.collect()
    assert simulation.status is Status.COMPLETED
    assert seen == ["closed"]
    assert caplog.records == []
    assert not [entry for entry in simulation.log if isinstance(entry, events.ActivityScheduled)]
    assert not simulation._live_root.recorder.loop.tasks


# Cancellation, and code that never yields.


def test_a_call_cancelled_in_its_own_tick_is_recorded_but_never_dispatched():
    async def workflow(ctx):
        future = ctx.activity(echo, 1)
        assert future.cancel()
        assert not future.cancel()
        ctx.run(print, "never").cancel()
        ctx.sleep(1).cancel()
        await ctx.listen("never")

    execution, outcome = advance(workflow)
    assert [(entry.type, entry.ref) for entry in outcome.events] == [
        ("activity_scheduled", None),
        ("activity_cancelled", 2),
        ("operation_started", None),
        ("operation_cancelled", 4),
        ("timer_started", None),
        ("timer_cancelled", 6),
        ("listen_started", None),
    ]
    assert (outcome.activities, outcome.withdrawals, outcome.wake_at) == ((), (), None)
    assert execution.take_operations() == []
    execution.close()


@pytest.mark.parametrize("sleep", ["ctx.sleep", "listen"])
def test_a_workflow_that_never_yields_does_not_block_its_worker(sleep):
    async def workflow(ctx):
        while True:
            if sleep == "ctx.sleep":
                await ctx.sleep(0)
            else:
                with contextlib.suppress(TimeoutError):
                    await ctx.listen("never", timeout=0)

    execution, outcome = advance(workflow)
    assert outcome.status is Status.RUNNING
    assert outcome.wake_at == START
    assert len(outcome.events) <= 2 * TICKS_PER_ADVANCE + 1
    again = execution.advance([], START)
    assert again.events[0].seq == outcome.events[-1].seq + 1
    execution.close()
