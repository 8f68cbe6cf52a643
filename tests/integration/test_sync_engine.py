"""The engine for code without an event loop: the same verbs, from any thread, and clear words where it cannot work."""

import inspect
import os
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec import Raw

from resurgam import Context, Engine, Handle, Registry, Status, SyncEngine, SyncHandle, errors
from resurgam.client import chain
from resurgam.core.outcome import Outcome, Publication
from resurgam.flows import ScriptStep, StepDecorator
from resurgam.store.records import Commit
from resurgam.sync import FlowOptions, SignalOptions, StartOptions
from support.limits import HANGS

ROOT = Path(__file__).parents[2]
registry = Registry()


@registry.activity
def double(number: int) -> int:
    return 2 * number


@registry.workflow
async def counting(ctx: Context, number: int) -> int:
    ctx.set("stage", "begun")
    doubled = await ctx.activity(double, number)
    return doubled + await ctx.listen("more", type=int)


@registry.workflow
async def adding(ctx: Context, number: int) -> int:
    @ctx.on_update("add")
    async def add(more: int) -> int:
        nonlocal number
        number += await ctx.activity(double, more) - more
        return number

    await ctx.listen("end")
    return number


@registry.workflow
async def fails(ctx: Context) -> None:
    raise KeyError("nothing there")


@pytest.fixture
def engine():
    with SyncEngine(registry=registry) as engine:
        yield engine


def test_every_verb_waits_and_answers(engine):
    handle = engine.start(counting, 4, id="c-1", tags={"shop": "a"})

    assert isinstance(handle, SyncHandle)
    assert (handle.entity_id, repr(handle)) == ("c-1", "<handle of workflow 'c-1'>")
    assert handle.describe().run_id == handle.run_id
    handle.signal("more", 1)
    assert handle.result(timeout=HANGS) == 9
    assert handle.state("stage") == "begun"
    assert handle.history()[0].type == "workflow_started"
    assert handle.history()[0].execution_id == handle.execution_id
    assert [instance.entity_id for instance in engine.list(tags={"shop": "a"}).instances] == ["c-1"]
    assert engine.handle("c-1", handle.run_id).result() == 9


def test_errors_come_out_as_they_do_elsewhere(engine):
    with pytest.raises(errors.WorkflowFailed, match="nothing there") as failed:
        engine.execute(fails)
    assert isinstance(failed.value.cause, KeyError)
    handle = engine.start(counting, 1, id="c-1")
    while handle.history()[-1].type != "listen_started":
        pass
    with pytest.raises(errors.ResultTimeout, match="'more'"):
        handle.result(timeout=0.05)
    with pytest.raises(errors.NotFound, match="'unknown'"):
        engine.handle("unknown").cancel()
    with pytest.raises(errors.DefinitionError):
        engine.execute(counting)
    engine.handle("c-1").terminate("enough")
    assert engine.handle("c-1").describe().status is Status.TERMINATED


def test_a_signal_begins_what_it_is_for(engine):
    handle = engine.signal_with_start(counting, 4, id="c-1", signal="more", value=1)

    assert handle.result(timeout=HANGS) == 9


def test_an_update_begins_what_it_is_for_and_may_be_left_once_it_is_accepted(engine):
    assert engine.update_with_start(adding, 4, id="a-1", update="add", with_args=(1,), type=int) == 5

    begun = engine.handle("a-1").update("add", 2, wait="accepted", id="u")
    assert (begun.id, repr(begun)) == ("u", "<handle of update 'add' (u) of workflow 'a-1'>")
    assert begun.result(timeout=HANGS) == 7
    assert engine.handle("a-1").update("add", 2, id="u") == 7
    with pytest.raises(errors.UpdateRejected, match="it has 'add'"):
        engine.handle("a-1").update("ad", 1)


def test_workflows_are_halted_begun_and_told_without_a_worker():
    with SyncEngine(registry=registry, worker=False) as client:
        handle = client.start(counting, 4, id="c-1", delay=3600)
        handle.begin()
        handle.pause(tree=True, reason="lunch")
        assert handle.describe().status is Status.PAUSED
        handle.resume()
        assert handle.describe().status is Status.RUNNING
        assert client.list(parent="c-1").instances == ()
        with pytest.raises(errors.NotFound, match="has no promise 'pay'; it has none"):
            handle.resolve("pay", 1)
        with pytest.raises(errors.NotFound, match="has no promise 'pay'"):
            handle.reject("pay", "no")
        for settle in (client.resolve, client.reject):
            with pytest.raises(errors.NotFound, match="no promise with id 'p-1'"):
                settle("p-1", "no")
        with pytest.raises(errors.ResultTimeout):
            handle.update("add", 1, timeout=0.01)


def test_messages_are_heard_as_they_come():
    async def publish(store, number):
        [claim] = await store.claim("w", ["default"], 1)
        outcome = Outcome(publications=(Publication("news", Raw(b"%d" % number)),))
        ids = {"execution_id": claim.instance.execution_id, "entity_id": "c-1", "epoch": claim.epoch}
        await store.commit([Commit(**ids, base_seq=claim.instance.last_seq, wake=claim.wake, outcome=outcome)])

    with SyncEngine(registry=registry, worker=False) as client, ThreadPoolExecutor(1) as threads:
        handle = client.start(counting, 4, id="c-1")
        heard = client.subscribe("news")
        coming = threads.submit(lambda: [next(heard), next(heard)])
        for number in (1, 2):
            client._thread.call(lambda number=number: publish(client._engine.store, number))
            handle.signal("more")
        assert coming.result(HANGS) == [1, 2]
        assert iter(heard) is heard


def test_flows_and_steps_have_their_verbs():
    local = Registry()

    @StepDecorator(local)
    def doubled(number: int) -> int:
        return 2 * number

    with SyncEngine("memory://", registry=local) as engine:
        script = ScriptStep("halved", "return {half = doubled / 4}", inputs=["doubled"], outputs=["half"])
        assert engine.register_step(script)
        assert not engine.update_step(script)
        assert [step.id for step in engine.steps()] == ["doubled", "halved"]
        assert engine.plan(["halved"]).required == ("number",)
        flow = engine.start_flow(["halved"], {"number": 6}, id="f")
        assert flow.result(timeout=HANGS) == {"half": 3.0}
        engine.remove_step("halved")
        with pytest.raises(errors.NotFound, match="'halved'"):
            engine.start_flow(["halved"], {"number": 6})


def test_threads_share_an_engine(engine):
    """Each waits for a signal that another one sends, so that all of them must be waiting at once."""

    def go(number: int) -> int:
        handle = engine.start(counting, number, id=f"c-{number}")
        meeting.wait()
        engine.handle(f"c-{(number + 1) % 8}").signal("more", 100)
        return handle.result(timeout=HANGS)

    meeting = threading.Barrier(8, timeout=HANGS)
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(go, range(8))) == [2 * number + 100 for number in range(8)]


def test_an_activity_may_use_the_engine_that_runs_it():
    own = Registry()

    @own.activity
    def nested(number: int) -> int:
        return engine.execute(inner, number)

    @own.workflow
    async def inner(ctx: Context, number: int) -> int:
        return number + 1

    @own.workflow
    async def outer(ctx: Context, number: int) -> int:
        return await ctx.activity(nested, number)

    with SyncEngine(registry=own) as engine:
        assert engine.execute(outer, 1) == 2


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_both_engines_have_the_same_verbs():
    """What only makes sense on the loop is left out: the store, the parts of a server, and what tests ask of the worker."""
    only_on_the_loop = {
        "store",
        "clock",
        "archiver",
        "health_checks",
        "inspector",
        "readable",
        "worker",
        "busy",
        "progress",
        "resting",
        "running",
    }
    assert public(Engine) - public(SyncEngine) == only_on_the_loop
    assert public(SyncEngine) <= public(Engine)
    assert public(SyncHandle) - {"entity_id"} == public(Handle)


def test_both_engines_take_the_same_arguments():
    for ours, theirs in ((SyncHandle, Handle), (SyncEngine, Engine)):
        for name in public(ours) - {"start", "execute", "signal_with_start", "start_flow"}:
            if inspect.isfunction(theirs.__dict__.get(name)):
                written, wanted = (inspect.signature(getattr(kind, name)) for kind in (ours, theirs))
                assert str(written).partition(" -> ")[0] == str(wanted).partition(" -> ")[0]
                assert getattr(ours, name).__doc__
    options_of = {
        Engine.start: StartOptions,
        Engine.signal_with_start: SignalOptions,
        Engine.start_flow: FlowOptions,
    }
    for verb, written in options_of.items():
        options = [p for p in inspect.signature(verb).parameters.values() if p.kind is p.KEYWORD_ONLY]
        assert [option.name for option in options] == list(written.__annotations__)
    with pytest.raises(TypeError, match="registry"):
        SyncEngine(registry="none")


async def test_async_code_is_told_to_use_the_other_engine():
    with pytest.raises(RuntimeError, match="use Engine"):
        SyncEngine().__enter__()


async def test_async_code_is_told_so_by_every_verb(engine):
    with pytest.raises(RuntimeError, match="use Engine"):
        engine.start(counting, 1)
    with pytest.raises(RuntimeError, match="use Engine"):
        engine.handle("x").result()


def test_a_workflow_is_told_so_too(engine):
    own = Registry()

    @own.workflow
    async def blocks(ctx: Context) -> object:
        return engine.list()

    with SyncEngine(registry=own) as other, pytest.raises(errors.WorkflowFailed, match="use Engine"):
        other.execute(blocks)


async def test_a_cell_of_a_notebook_may_block_the_loop_of_its_kernel(engine):
    """The kernel runs a loop of its own, and cells inside of one of its coroutines."""
    kernel = {"__name__": "IPython.core.interactiveshell"}
    exec("async def run_code(cell, names):\n    exec(cell, names)", kernel)
    names = {"__name__": "__main__", "engine": engine}

    await kernel["run_code"]("found = engine.list().instances", names)

    assert list(names["found"]) == []


def test_an_engine_that_is_not_open_says_so():
    engine = SyncEngine(registry=registry)
    with pytest.raises(errors.StoreError, match="not open"):
        engine.start(counting, 1)
    with engine:
        handle = engine.start(counting, 1)
        with pytest.raises(errors.StoreError, match="already open"):
            engine.__enter__()
    for use in (engine.list, handle.describe, lambda: engine.handle("x"), engine.run):
        with pytest.raises(errors.StoreError, match="not open"):
            use()


def test_an_engine_may_be_opened_again_under_another_name(tmp_path):
    """Made before a fork and opened after it, each process has an owner's lock of its own."""
    engine = SyncEngine(f"sqlite:///{tmp_path / 'x.db'}", registry=registry)
    with engine:
        first = engine._engine._options.name
        engine.start(counting, 1, id="c-1")
    with engine:
        assert engine._engine._options.name != first
        engine.handle("c-1").signal("more", 5)
        assert engine.handle("c-1").result(timeout=HANGS) == 7


def test_a_store_that_cannot_be_opened_is_an_error_at_the_with(tmp_path):
    with pytest.raises(errors.StoreError), SyncEngine(f"sqlite:///{tmp_path / 'no' / 'such' / 'x.db'}"):
        pass


def test_a_call_that_waits_while_the_engine_is_closed_is_told(monkeypatch):
    begun, wait = threading.Event(), chain.wait_for_chain
    monkeypatch.setattr(chain, "wait_for_chain", lambda *given, **options: (begun.set(), wait(*given, **options))[1])
    with ThreadPoolExecutor(1) as threads:
        with SyncEngine(registry=registry) as engine:
            handle = engine.start(counting, 1)
            waiting = threads.submit(handle.result)
            assert begun.wait(HANGS)
        with pytest.raises(errors.StoreError, match="closed while"):
            waiting.result(HANGS)


def test_only_the_main_thread_serves_until_a_signal(engine):
    with ThreadPoolExecutor(1) as threads, pytest.raises(RuntimeError, match="main thread"):
        threads.submit(engine.run).result()
    with SyncEngine(worker=False) as client, pytest.raises(errors.StoreError, match="no worker"):
        client.run()


PROGRAM = """
import os, sys, threading, time
from resurgam import Context, SyncEngine, activity, workflow

@activity
def slow() -> str:
    print("begun", flush=True)
    time.sleep(0.5)
    print("done", flush=True)
    return "slept"

@workflow
async def sleeper(ctx: Context) -> str:
    await ctx.activity(slow)
    return await ctx.listen("never", type=str)

@workflow
async def listener(ctx: Context) -> str:
    return await ctx.listen("never", type=str)

"""


def program(code: str, *arguments: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM + textwrap.dedent(code), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )


def test_ctrl_c_in_a_call_drains_and_leaves(tmp_path):
    """The activity that runs may finish, and its result is recorded."""
    url = f"sqlite:///{tmp_path / 'x.db'}"
    waits = program(
        """
        try:
            with SyncEngine(sys.argv[1]) as engine:
                engine.execute(sleeper, id="s-1")
        except KeyboardInterrupt:
            for thread in threading.enumerate():
                if thread is not threading.main_thread():
                    thread.join(60)  # one that has done its work may not have ended yet
            print("left", threading.active_count())
        """,
        url,
    )
    assert waits.stdout.readline() == "begun\n"
    waits.send_signal(signal.SIGINT)
    told, said = waits.communicate(timeout=HANGS)
    assert (told, waits.returncode) == ("done\nleft 1\n", 0), said
    with SyncEngine(url, worker=False) as engine:
        assert "activity_completed" in [event.type for event in engine.handle("s-1").history()]


def test_a_second_ctrl_c_does_not_wait_for_the_drain():
    waits = program(
        """
        import contextlib

        @activity
        def for_ever() -> None:
            print("begun", flush=True)
            threading.Event().wait()

        @workflow
        async def stuck(ctx: Context) -> None:
            await ctx.activity(for_ever)

        def tell_when_it_drains() -> None:
            names = set()
            while not {"close", "wait"} <= names:
                time.sleep(0.01)
                names, frame = set(), sys._current_frames()[threading.main_thread().ident]
                while frame is not None:
                    names.add(frame.f_code.co_name)
                    frame = frame.f_back
            print("draining", flush=True)

        with contextlib.suppress(KeyboardInterrupt), SyncEngine(grace=600) as engine:
            try:
                engine.execute(stuck)
            finally:
                threading.Thread(target=tell_when_it_drains, daemon=True).start()
        """
    )
    assert waits.stdout.readline() == "begun\n"
    waits.send_signal(signal.SIGINT)
    assert waits.stdout.readline() == "draining\n"
    with pytest.raises(subprocess.TimeoutExpired):
        waits.wait(0.3)  # it drains
    waits.send_signal(signal.SIGINT)
    _, said = waits.communicate(timeout=HANGS)
    assert waits.returncode == 0, said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_it_is_asked_to_stop(number):
    serves = program(
        """
        import signal

        def start_when_it_serves() -> None:
            while signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                time.sleep(0.01)
            engine.start(sleeper)

        with SyncEngine() as engine:
            threading.Thread(target=start_when_it_serves).start()
            engine.run()
            print("drained", flush=True)
        """
    )
    assert serves.stdout.readline() == "begun\n"
    serves.send_signal(number)
    told, said = serves.communicate(timeout=HANGS)
    assert (told, serves.returncode) == ("done\ndrained\n", 0), said


def test_a_forked_child_is_told_to_open_its_own():
    """A server that loads the application and then forks; the child's way out of the ``with`` does not wait either."""
    forks = program(
        """
        import warnings
        warnings.simplefilter("ignore")
        with SyncEngine() as engine:
            handle = engine.start(listener)  # which prints nothing: at the fork, half a line would be printed twice
            child = os.fork()
            if not child:
                for use in (engine.list, handle.describe):
                    try:
                        use()
                    except RuntimeError as error:
                        print(error, flush=True)
            else:
                assert os.waitpid(child, 0)[1] == 0
                print(handle.describe().status, flush=True)
        if not child:
            with SyncEngine() as own:
                print(len(own.list().instances), flush=True)
            os._exit(0)
        """
    )
    told, said = forks.communicate(timeout=HANGS)
    lines = told.splitlines()
    assert forks.returncode == 0, said
    assert all("after the fork" in line for line in lines[:2]), told
    assert lines[2:] == ["0", "running"]
