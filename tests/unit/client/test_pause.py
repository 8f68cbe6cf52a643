"""Pausing, alone and with all that hangs below, and going on; beginning what was put off."""

import pytest

from resurgam import Context, Engine, Registry, Status, errors
from support.manual_worker import workerless_engine


async def family(engine, worker):
    """Begin o-1 with c-1 below it, and g-1 below that; and u-1, which has nothing to do with them."""
    await engine.start("sell", id="u-1")
    await engine.start("sell", id="o-1")
    await worker.starts_child("o-1", "c-1")
    await worker.starts_child("c-1", "g-1")


async def statuses(engine):
    return {i.entity_id: str(i.status) for i in (await engine.list()).instances}


async def test_a_paused_workflow_is_not_offered_until_it_is_resumed():
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        await handle.pause(reason="lunch")

        found = await handle.describe()
        assert (found.status, found.paused) == (Status.PAUSED, True)
        assert found.waiting_for[0] == "a resume: handle.resume()"
        assert list(await worker.claim()) == []
        await handle.resume()
        assert (await handle.describe()).status is Status.RUNNING
        assert [entry.event.type for entry in (await worker.take("o-1")).inbox] == [
            "workflow_paused",
            "workflow_resumed",
        ]


async def test_a_pause_is_of_one_workflow_only_unless_the_tree_is_asked_for():
    async with workerless_engine() as (engine, worker):
        await family(engine, worker)
        await engine.handle("o-1").pause()

        assert await statuses(engine) == {"u-1": "running", "o-1": "paused", "c-1": "running", "g-1": "running"}


async def test_a_tree_is_paused_and_resumed_from_anywhere_downwards():
    async with workerless_engine() as (engine, worker):
        await family(engine, worker)
        await engine.handle("o-1").pause(tree=True)
        assert await statuses(engine) == {"u-1": "running", "o-1": "paused", "c-1": "paused", "g-1": "paused"}

        await engine.handle("o-1").resume()
        assert set((await statuses(engine)).values()) == {"running"}

        await engine.handle("c-1").pause(tree=True)
        assert await statuses(engine) == {"u-1": "running", "o-1": "running", "c-1": "paused", "g-1": "paused"}


async def test_one_that_was_paused_by_itself_is_not_resumed_with_the_tree():
    async with workerless_engine() as (engine, worker):
        await family(engine, worker)
        await engine.handle("c-1").pause()
        await engine.handle("o-1").pause(tree=True)
        await engine.handle("o-1").resume()

        assert await statuses(engine) == {"u-1": "running", "o-1": "running", "c-1": "paused", "g-1": "running"}


async def test_descendants_below_one_that_has_ended_are_paused_too():
    async with workerless_engine() as (engine, worker):
        await family(engine, worker)
        await engine.handle("c-1").terminate()
        await engine.handle("o-1").pause(tree=True)

        assert (await statuses(engine))["g-1"] == "paused"


async def test_a_paused_workflow_is_not_paused_twice():
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        await handle.pause()
        await handle.pause()
        await handle.resume()

        assert len((await worker.take("o-1")).inbox) == 2


async def test_a_delayed_run_can_be_begun_by_hand():
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1", delay=3600)
        await handle.begin()

        assert (await handle.describe()).status is Status.RUNNING
        assert [entry.event.type for entry in (await worker.take("o-1")).inbox] == ["workflow_begun"]


async def test_a_deferred_child_is_begun_and_its_parent_says_that_it_waits():
    async with workerless_engine() as (engine, worker):
        await engine.start("sell", id="o-1")
        await worker.starts_child("o-1", "c-1", deferred=True, queue="slow")

        said = "child workflow 'sell' (c-1) on queue 'slow', deferred until handle.begin(), at {1}"
        assert said in (await engine.handle("o-1").describe()).waiting_for
        child = engine.handle("c-1")
        assert (await child.describe()).waiting_for == ("its start by handle.begin()",)
        await child.begin()
        assert (await child.describe()).status is Status.RUNNING
        assert (
            "child workflow 'sell' (c-1) on queue 'slow' at {1}" in (await engine.handle("o-1").describe()).waiting_for
        )


BAD = [
    (lambda e: e.handle("o-9").pause(), "there is no workflow with id 'o-9'"),
    (lambda e: e.handle("o-9").resume(), "there is no workflow with id 'o-9'"),
    (lambda e: e.handle("o-9").begin(), "there is no workflow with id 'o-9'"),
    (lambda e: e.handle("ended").pause(), "workflow 'ended' is closed (completed) and accepts no more messages"),
    (
        lambda e: e.handle("ended").pause(tree=True),
        "workflow 'ended' is closed (completed) and accepts no more messages",
    ),
    (lambda e: e.handle("ended").resume(), "workflow 'ended' is completed, not paused; there is nothing to resume"),
    (lambda e: e.handle("ended").begin(), "workflow 'ended' is completed; only a scheduled workflow can be begun"),
    (lambda e: e.handle("o-1").resume(), "workflow 'o-1' is running, not paused"),
    (lambda e: e.handle("o-1").begin(), "workflow 'o-1' is running; only a scheduled workflow can be begun"),
]


@pytest.mark.parametrize(("call", "text"), BAD, ids=[f"{n} {text[:40]}" for n, (_, text) in enumerate(BAD)])
async def test_what_is_in_the_wrong_state_is_left_alone(call, text):
    async with workerless_engine() as (engine, worker):
        await engine.start("sell", id="ended")
        await worker.completes("ended")
        await engine.start("sell", id="o-1")
        before = await engine.list()
        with pytest.raises((errors.NotFound, errors.StoreError)) as found:
            await call(engine)

        assert text in str(found.value)
        assert await engine.list() == before
        assert (await worker.take("o-1")).inbox == ()


async def test_a_run_begun_by_hand_does_not_wait_for_its_start():
    registry = Registry()

    @registry.workflow
    async def waits(ctx: Context) -> None: ...

    async with Engine("memory://", registry=registry, worker=False) as engine:
        handle = await engine.start(waits, delay=1000)
        await handle.begin()
        shown = await handle.describe()
        assert shown.status == "running"
        assert not [what for what in shown.waiting_for if "its start at" in what]
