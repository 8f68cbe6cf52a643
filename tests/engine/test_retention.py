"""Ended runs are removed by hand and by the worker, unless another one needs them."""

from datetime import timedelta

import pytest

from resurgam import Retain, errors
from resurgam.core import event as events
from resurgam.flows import StepDecorator
from resurgam.runtime.context.context import Context
from resurgam.runtime.execution.execution import Execution
from resurgam.runtime.registry import Registry
from resurgam.store import records as r
from resurgam.store.records import Lease, Purged, Release, Released
from resurgam.testing import Environment
from resurgam.testing.contract.bench import raises
from resurgam.worker.retention import DeadLetters
from support.engines import Engines, count_of

DAY = timedelta(days=1)


async def test_a_removed_run_is_not_found(engines: Engines) -> None:
    """Its result, its history and its description are gone; the id is free."""
    registry = Registry()

    @registry.workflow
    async def brief(ctx: Context, word: str) -> str:
        return word

    async with engines.open(registry) as env:
        handle = await env.start(brief, "a", id="o-1")
        await env.advance(1)
        assert await env.engine.purge(before=env.now()) == 1
        by_id = env.handle("o-1")
        for call in (by_id.result, by_id.history, by_id.describe, by_id.tree, lambda: env.engine.export("o-1")):
            with raises(errors.NotFound, "there is no workflow with id 'o-1'"):
                await call()
        with raises(errors.NotFound, f"run {handle.run_id!r} of workflow 'o-1' was removed from the store"):
            await handle.result()
        again = await env.start(brief, "b", id="o-1")
        assert await env.finish(again.result()) == "b"


async def test_runs_are_removed_by_age_status_and_name(engines: Engines) -> None:
    """Those that ended before the moment; an open one is never removed."""
    registry = Registry()

    @registry.workflow
    async def brief(ctx: Context, problem: str) -> None:
        if problem:
            raise ValueError(problem)

    @registry.workflow
    async def waiting(ctx: Context) -> None:
        await ctx.listen("go")

    async with engines.open(registry) as env:
        for name, problem in (("old", ""), ("failed", "no")):
            await env.start(brief, problem, id=name)
        await env.start(waiting, id="open")
        await env.start(waiting, id="gone")
        await env.handle("gone").cancel()
        await env.advance(DAY)
        then = env.now()
        await env.start(brief, "", id="young")

        assert await env.engine.purge(before=then - 2 * DAY) == 0
        assert await env.engine.purge(before=then, status="failed", name="waiting") == 0
        assert await env.engine.purge(before=then, status="failed", name="brief") == 1
        assert await env.engine.purge(before=then, name="brief") == 1
        assert await env.engine.purge(before=then) == 1
        left = (await env.engine.list()).instances
        assert sorted(one.entity_id for one in left) == ["open", "young"]


async def test_the_worker_removes_runs_when_they_have_the_age(engines: Engines) -> None:
    """Each when its own time has come."""
    registry = Registry()

    @registry.workflow
    async def brief(ctx: Context) -> None:
        return

    async with engines.open(registry, retain=30 * DAY) as env:
        await env.start(brief)
        await env.advance(20 * DAY)
        await env.start(brief)
        await env.advance(9 * DAY)
        assert await count_of(env) == 2
        await env.advance(2 * DAY)
        assert await count_of(env) == 1
        await env.advance(20 * DAY)
        assert await count_of(env) == 0


async def test_a_child_is_kept_until_its_parent_has_recorded_its_end(engines: Engines) -> None:
    """A parent that is paused has not; when it goes on it gets the result."""
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context) -> str:
        await ctx.sleep(10)
        return "from the child"

    @registry.workflow
    async def parent(ctx: Context) -> str:
        got = await ctx.workflow(child)
        await ctx.sleep(10)
        return got

    async with engines.open(registry) as env:
        handle = await env.start(parent)
        await handle.pause()
        await env.advance(DAY)
        assert await env.engine.purge(before=env.now()) == 0
        await handle.resume()
        await env.advance(1)
        assert await env.engine.purge(before=env.now()) == 1
        assert await env.finish(handle.result()) == "from the child"


async def test_runs_are_listed_in_pages_and_removed_by_status(engines: Engines):
    registry = Registry()

    @registry.workflow
    async def work(ctx: Context, number: int) -> None:
        if number % 2:
            await ctx.sleep(3600)

    async with engines.open(registry) as env:
        for number in range(20):
            await env.engine.start(work, number)
        await env.settle()
        done = await env.engine.list(status="completed", limit=6)
        rest = await env.engine.list(status="completed", limit=6, cursor=done.cursor)
        listed = [*done.instances, *rest.instances]
        assert len({one.execution_id for one in listed}) == 10
        assert await env.engine.store.purge(listed) == [Purged()] * 10
        assert (await env.engine.list(status="completed")).instances == ()
        assert len((await env.engine.list()).instances) == 10


async def test_rules_keep_runs_by_name_and_status(engines: Engines) -> None:
    """The most specific rule decides; a flow goes by its goals; what no rule covers is kept."""
    registry = Registry()

    @registry.workflow
    async def ping(ctx: Context, problem: str) -> None:
        if problem:
            raise ValueError(problem)

    @registry.workflow
    async def other(ctx: Context, problem: str) -> None:
        if problem:
            raise ValueError(problem)

    @StepDecorator(registry)
    async def price(order: str) -> int:
        return len(order)

    rules = [
        *(Retain(DAY, "ping"), Retain(9 * DAY, "ping", "failed"), Retain(5 * DAY, status="failed")),
        Retain(7 * DAY, "price"),
    ]

    async with engines.open(registry, retain=rules) as env:
        for work in (ping, other):
            for problem in ("", "no"):
                await env.start(work, problem, id=f"{work.name}{'-failed' * bool(problem)}")
        await env.engine.start_flow(["price"], {"order": "o-1"}, id="flow")
        left = []
        for _ in range(5):
            await env.advance(2 * DAY)
            left.append(sorted(one.entity_id for one in (await env.engine.list()).instances if one.kind != "catalog"))

    assert left == [
        ["flow", "other", "other-failed", "ping-failed"],
        ["flow", "other", "other-failed", "ping-failed"],
        ["flow", "other", "ping-failed"],
        ["other", "ping-failed"],
        ["other"],
    ]


async def test_a_general_rule_steps_over_what_a_name_keeps(engines: Engines) -> None:
    """Also where runs end later, and where a kept run is needed by nobody any more."""
    registry = Registry()

    @registry.workflow
    async def kept(ctx: Context) -> None:
        return

    @registry.workflow
    async def brief(ctx: Context) -> None:
        return

    async with engines.open(registry, retain=[Retain(DAY), Retain(10 * DAY, "kept")]) as env:
        for day in range(5):
            await env.start(kept, id=f"kept-{day}")
            await env.start(brief, id=f"brief-{day}")
            await env.advance(DAY)
        await env.advance(DAY)
        left = sorted(one.entity_id for one in (await env.engine.list()).instances)
        assert left == [f"kept-{day}" for day in range(5)]
        await env.advance(10 * DAY)
        assert await count_of(env) == 0


async def test_executions_in_an_archive_are_removed_by_the_same_rules(engines: Engines) -> None:
    """By the worker and by a purge; children of a failed parent in an archive are kept as long as its row."""
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context) -> None:
        return

    @registry.workflow
    async def parent(ctx: Context, problem: str) -> None:
        await ctx.workflow(child, id="child")
        raise ValueError(problem)

    async def archive(env: Environment, entity_id: str) -> None:
        transfer = env.engine.store.transfer
        copies = tuple(await transfer.copies(entity_id))
        [answer] = await transfer.archive([r.Archival(entity_id=entity_id, copies=copies, archive="file:///a/1")])
        assert isinstance(answer, r.Archived)

    async with engines.open(registry, retain=[Retain(5 * DAY, "parent"), Retain(DAY)]) as env:
        await env.start(parent, "no", id="parent")
        await env.start(child, id="other")
        await env.start(child, id="third")
        await env.advance(1)
        await archive(env, "parent")
        await archive(env, "other")
        assert await env.engine.purge(before=env.now(), name="child") == 2
        assert await count_of(env) == 2
        await env.start(child, id="fourth")
        await env.advance(1)
        await archive(env, "fourth")
        await env.advance(2 * DAY)
        assert sorted(one.entity_id for one in (await env.engine.list()).instances) == ["child", "parent"]
        await env.advance(5 * DAY)
        assert await count_of(env) == 0


async def test_dead_letters_are_kept_unless_a_rule_ends_them(engines: Engines, monkeypatch, caplog) -> None:
    """One without progress for so long is terminated, and then removed as other runs are."""
    caplog.set_level("CRITICAL", logger="resurgam")
    registry = Registry()

    @registry.workflow
    async def waiting(ctx: Context) -> None:
        await ctx.listen("go")

    def fail(*_: object, **__: object) -> None:
        raise IndexError("boom")

    async with engines.open(registry, retain=[Retain(DAY), Retain(3 * DAY, dead_letters=True)]) as env:
        await env.start(waiting, id="healthy")
        with monkeypatch.context() as patch:
            patch.setattr(Execution, "advance", fail)
            dead = await env.start(waiting, id="dead")
            await env.advance(60)
        assert (await env.engine.store.inspector.stats()).dead_instances == 1
        await env.advance(2 * DAY)
        assert (await dead.describe()).error is not None
        await env.advance(DAY + timedelta(hours=1))
        assert (await dead.describe()).status == "terminated"
        [terminated] = [entry for entry in await dead.history() if isinstance(entry, events.WorkflowTerminated)]
        assert terminated.reason == (
            "it was a dead letter without progress for more than 3 days, 0:00:00: handed out 20 times without a commit; "
            "the last error: IndexError('boom')"
        )
        await env.advance(2 * DAY)
        assert [one.entity_id for one in (await env.engine.list()).instances] == ["healthy"]


@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
async def test_activities_that_are_dead_letters_fail_after_a_while(engines: Engines, caplog, *, closed: bool) -> None:
    """The workflow gets the failure; a run that is closed becomes complete by it, and is then removed as others are."""
    caplog.set_level("CRITICAL", logger="resurgam")
    registry = Registry()

    @registry.activity(queue="elsewhere")
    async def pack() -> None: ...

    @registry.workflow
    async def order(ctx: Context) -> str:
        try:
            await ctx.activity(pack)
        except errors.ActivityFailed as failed:
            return str(failed.cause)
        return "packed"

    async with engines.open(registry, retain=[Retain(3 * DAY), Retain(DAY, dead_letters=True)]) as env:
        handle = await env.start(order, id="order")
        await env.settle()
        store = env.engine.store
        [task] = await store.claim_activities("doomed", ["elsewhere"], 1)
        if closed:
            await handle.terminate()
            await env.settle()
        lease = Lease(entity_id="order", execution_id=task.execution_id, epoch=task.epoch, ref=task.request.ref)
        assert await store.release([Release(lease=lease, failed="it kills its workers", final=True)]) == [Released()]
        await env.advance(DAY / 2)
        assert (await store.inspector.stats()).dead_activities == 1
        await env.advance(DAY)
        assert (await store.inspector.stats()).dead_activities == 0
        if not closed:
            reason = "it was a dead letter for more than 1 day, 0:00:00: it kills its workers"
            assert await handle.result() == reason
        assert (await handle.describe()).deactivated
        await env.advance(4 * DAY)
        assert await count_of(env) == 0


@pytest.mark.engines("memory-cached", "sqlite-cached")
async def test_an_activity_that_is_revived_meanwhile_does_not_fail(engines: Engines, monkeypatch) -> None:
    """It was listed as a dead letter, and a person has revived it before it was answered."""
    registry = Registry()

    @registry.activity(queue="elsewhere")
    async def pack() -> None: ...

    @registry.workflow
    async def order(ctx: Context) -> None:
        await ctx.activity(pack)

    async with engines.open(registry) as env:
        await env.start(order, id="order")
        await env.settle()
        store = env.engine.store
        [task] = await store.claim_activities("doomed", ["elsewhere"], 1)
        lease = Lease(entity_id="order", execution_id=task.execution_id, epoch=task.epoch, ref=task.request.ref)
        await store.release([Release(lease=lease, failed="it kills its workers", final=True)])
        await env.advance(2 * DAY)
        open_work = store.inspector.open_work

        async def revived_afterwards(execution: r.Addressed) -> r.OpenWork | None:
            found = await open_work(execution)
            await store.revive([execution])
            return found

        monkeypatch.setattr(store.inspector, "open_work", revived_afterwards)
        await DeadLetters(store, env.clock, 1000).run()
        [again] = await store.claim_activities("fine", ["elsewhere"], 1)
        assert again.request.ref == task.request.ref


@pytest.mark.engines("memory-cached", "sqlite-cached")
async def test_without_a_rule_for_them_dead_letters_are_kept(engines: Engines, monkeypatch, caplog) -> None:
    caplog.set_level("CRITICAL", logger="resurgam")
    registry = Registry()

    @registry.workflow
    async def waiting(ctx: Context) -> None:
        await ctx.listen("go")

    def fail(*_: object, **__: object) -> None:
        raise IndexError("boom")

    async with engines.open(registry, retain=DAY) as env:
        with monkeypatch.context() as patch:
            patch.setattr(Execution, "advance", fail)
            dead = await env.start(waiting, id="dead")
            await env.advance(60)
        await env.advance(100 * DAY)
        assert (await dead.describe()).status == "running"
        await dead.terminate()
