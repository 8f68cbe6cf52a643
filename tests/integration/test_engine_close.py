"""Leaving an engine: cancelled at any moment it lets go of everything, and what comes afterwards is not heard."""

import asyncio
import os
import threading
import warnings

import pytest

from resurgam import Context, Engine, Registry, errors
from resurgam.runtime.system import SystemClock
from resurgam.store import records as r
from resurgam.store.open import open_store
from resurgam.store.sqlite.store import SqliteStore
from resurgam.worker import tasks
from support.limits import HANGS

TURNS = 40


@pytest.fixture(params=["memory://", "sqlite://"])
def url(request):
    return request.param


class Hanging:
    """A workflow whose activity goes on until it is let, and then says so."""

    def __init__(self, *, stubborn=False):
        self.registry = Registry()
        self.begun, self.proceed = asyncio.Event(), asyncio.Event()

        @self.registry.activity
        async def hang() -> str:
            self.begun.set()
            while not self.proceed.is_set():
                try:
                    await self.proceed.wait()
                except asyncio.CancelledError:
                    if not stubborn:
                        raise
            return "done"

        @self.registry.workflow
        async def waits(ctx: Context) -> str:
            return await ctx.activity(hang)

        self.waits = waits

    async def run(self, url):
        async with Engine(url, registry=self.registry, grace=3600) as engine:
            await engine.start(self.waits, id="w")
            await asyncio.Event().wait()


async def turns(number=TURNS):
    for _ in range(number):
        await asyncio.sleep(0)


def left():
    """Return what an engine may have left behind in this process."""
    tasks = {task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()}
    return tasks, {thread.name for thread in threading.enumerate() if thread.name.startswith("resurgam")}


def owners(folder):
    """Return the locks of the stores that are open."""
    return list(folder.glob("x.db-owners/*"))


def cancel_twice(program):
    program.cancel()
    asyncio.get_running_loop().call_later(0.01, program.cancel)


def cancel_at_every_turn(program):
    """Cancel as anyio's cancel scopes do, which give no peace until the task has left them."""
    if not program.done():
        program.cancel()
        asyncio.get_running_loop().call_soon(cancel_at_every_turn, program)


def cancel_every_task(program):
    """Cancel as many programs do when they end; the tasks of the engine are among them."""
    program.cancel()
    this = asyncio.current_task()
    asyncio.get_running_loop().call_later(0.01, lambda: [t.cancel() for t in asyncio.all_tasks() if t is not this])


@pytest.mark.parametrize("cancel", [cancel_twice, cancel_at_every_turn, cancel_every_task])
async def test_an_engine_whose_exit_is_cancelled_skips_the_grace_and_lets_go_of_everything(tmp_path, cancel):
    url, hanging = f"sqlite:///{tmp_path / 'x.db'}", Hanging()
    program = asyncio.create_task(hanging.run(url))
    await hanging.begun.wait()

    cancel(program)
    await asyncio.wait({program})

    assert program.cancelled()
    await turns()
    assert left() == (set(), set())
    assert not owners(tmp_path)
    # Leases are given back: who comes next need not wait for them to run out.
    hanging.proceed.set()
    async with Engine(url, registry=hanging.registry, lease=3600) as engine:
        assert await engine.handle("w").result(timeout=HANGS) == "done"


async def test_a_drain_whose_caller_is_cancelled_skips_the_grace_and_goes_on(tmp_path):
    """As when Ctrl-C is pressed a second time in `engine.run`."""
    url, hanging = f"sqlite:///{tmp_path / 'x.db'}", Hanging()
    async with Engine(url, registry=hanging.registry, grace=3600) as engine:
        await engine.start(hanging.waits, id="w")
        await hanging.begun.wait()
        draining = asyncio.create_task(engine._worker.stop())
        await turns()
        draining.cancel()
        await asyncio.wait({draining})
        assert draining.cancelled()
    await turns()
    assert left() == (set(), set())
    hanging.proceed.set()
    async with Engine(url, registry=hanging.registry, lease=3600) as engine:
        assert await engine.handle("w").result(timeout=HANGS) == "done"


async def test_an_engine_that_is_cancelled_while_it_opens_lets_go_of_everything(tmp_path, monkeypatch):
    close = SqliteStore.close

    async def never(values):
        await asyncio.Event().wait()

    async def slowly(self):
        await turns()
        await close(self)

    monkeypatch.setattr("resurgam.engine.secret_of", never)
    monkeypatch.setattr(SqliteStore, "close", slowly)
    engine = Engine(f"sqlite:///{tmp_path / 'x.db'}", registry=Registry())
    opening = asyncio.create_task(engine.__aenter__())
    await turns()
    assert len(owners(tmp_path)) == 1

    cancel_at_every_turn(opening)
    await asyncio.wait({opening})

    assert opening.cancelled()
    await turns()
    assert left() == (set(), set())
    assert not owners(tmp_path)
    with pytest.raises(errors.StoreError, match="not open"):
        await engine.list()


async def test_a_close_of_the_store_that_is_cancelled_can_be_repeated(tmp_path):
    store = open_store(f"sqlite:///{tmp_path / 'x.db'}", SystemClock(), name="me", lease=1000)
    waiting = asyncio.create_task(store.wait(r.Work(worker="me", queues=("default",))))
    await turns()
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait({closing})

    await store.close()

    assert not owners(tmp_path)
    with pytest.raises(errors.StoreError, match="closed"):
        await waiting
    await turns()
    assert left() == (set(), set())


async def test_a_result_that_comes_when_the_engine_is_closed_is_dropped(url, caplog, monkeypatch):
    monkeypatch.setattr(tasks, "_CANCEL_TIMEOUT", 0.01)
    hanging = Hanging(stubborn=True)
    async with Engine(url, registry=hanging.registry, grace=0) as engine:
        await engine.start(hanging.waits)
        await hanging.begun.wait()

    hanging.proceed.set()
    await turns()

    assert left() == (set(), set())
    assert caplog.messages == ["hang does not stop when it is cancelled, and is abandoned"]


async def test_a_fork_of_the_process_is_told_to_open_its_own_engine(tmp_path):
    path = tmp_path / "x.db"
    async with Engine(f"sqlite:///{path}", registry=Hanging().registry) as engine:
        reads, writes = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of forks beside threads
            child = os.fork()
        if not child:
            told = b"nothing"
            try:
                asyncio.new_event_loop().run_until_complete(engine.list())
            except errors.StoreError as error:
                told = str(error).encode()
            try:
                asyncio.new_event_loop().run_until_complete(engine.__aexit__(None, None, None))
            finally:
                os.write(writes, told)
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert b"after the fork" in os.read(reads, 1000)
        assert len(owners(tmp_path)) == 1
        assert (await engine.list()).instances == ()
        os.close(reads)
        os.close(writes)
