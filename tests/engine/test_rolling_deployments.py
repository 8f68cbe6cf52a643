"""Two builds of the code serve the same queues of one store: each run is finished by a build that fits, and only once."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from resurgam import RetryPolicy, activity
from resurgam.core import event as events
from resurgam.core.errors import WorkflowFailed
from resurgam.core.state import Status
from resurgam.engine import Engine
from resurgam.runtime.context.context import Context
from resurgam.runtime.definitions.info import activity_info
from resurgam.runtime.registry import Registry
from resurgam.store import records as r
from resurgam.store.protocol import Store
from support.engines import Engines, complaints, of_kind, settle, types, types_of

OLD, NEW = "old", "new"
OUTCOME = {OLD: ["reserved", "x", "shipped"], NEW: ["checked", "x", "shipped"]}
"""The results of runs, by the build that has begun them."""

HOUR = 3600


class Fleet:
    """The builds of a workflow; *ran* counts the attempts of each activity of each run."""

    def __init__(self) -> None:
        self.ran: Counter[tuple[str, str]] = Counter()

    def build(self, version: str) -> Registry:
        """Return a build: the first activity of the old one was replaced, which no open run of the other survives."""
        registry = self.activities()

        @registry.workflow
        async def order(ctx: Context) -> list[str]:
            first = await ctx.activity("reserve" if version == OLD else "check")
            word = await ctx.listen("go", type=str)
            return [first, word, await ctx.activity("ship")]

        return registry

    def gated(self, version: str) -> Registry:
        """Return a build of which the new one has one activity more, written so that old runs go on with it."""
        registry = self.activities()

        @registry.workflow
        async def order(ctx: Context) -> list[str]:
            words = [await ctx.activity("reserve"), await ctx.listen("go", type=str)]
            if version == NEW:
                await ctx.v(2).activity("check")
            words.append(await ctx.listen("more", type=str))
            return [*words, await ctx.activity("ship")]

        return registry

    def activities(self) -> Registry:
        """Return what all builds have."""
        registry = Registry()
        for name, answer in (("reserve", "reserved"), ("check", "checked"), ("ship", "shipped")):

            async def run(name: str = name, answer: str = answer) -> str:
                self.ran[activity_info().workflow_id, name] += 1
                return answer

            registry.activity(name=name)(run)
        return registry


class Claims:
    """A store that notes which worker has claimed which run."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.made: Counter[tuple[str, str]] = Counter()

    async def claim(self, worker: str, queues: Sequence[str], limit: int) -> Sequence[r.Claim]:
        """Claim, and note it by the name that the engine was given."""
        found = await self._store.claim(worker, queues, limit)
        self.made.update((worker.rpartition("-")[0], claim.instance.entity_id) for claim in found)
        return found

    def __getattr__(self, verb: str) -> Any:
        """Every other verb is the store's own."""
        return getattr(self._store, verb)


async def check_run(client: Engine, fleet: Fleet, entity_id: str, result: object) -> None:
    """Check that a run has one outcome, and that each activity that it has scheduled was run once and answered once."""
    handle = client.handle(entity_id)
    assert await handle.result(timeout=0) == result
    log = await handle.history()
    assert [entry.seq for entry in log] == list(range(1, len(log) + 1))
    assert len([entry for entry in log if entry.type == "workflow_completed"]) == 1
    assert log[-1].type == "workflow_deactivated"
    scheduled = of_kind(log, events.ActivityScheduled)
    assert sorted(entry.ref or 0 for entry in of_kind(log, events.ActivityCompleted)) == [one.seq for one in scheduled]
    assert {name: count for (of, name), count in fleet.ran.items() if of == entity_id} == {
        one.name: 1 for one in scheduled
    }


async def seen_by(store: Store, after: str = "") -> tuple[dict[str, list[int]], str]:
    """Return the events of each entity in the feed of a store, and where it ends."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    query, more = r.FeedQuery(after=after, limit=7), True
    while more:
        page = await store.feed.read(query)
        for entry in page.entries:
            found[entry.entity_id].append(entry.seq)
        query, more = replace(query, after=page.cursor), page.more
    return found, query.after


@pytest.mark.parametrize("builds", [(OLD, NEW), (NEW, OLD)], ids=" first, then ".join)
async def test_old_and_new_workers_side_by_side_finish_the_runs_that_they_can_replay(
    engines: Engines, builds: tuple[str, str]
) -> None:
    """Runs of either build come to either worker. A reader of the feed gets the entries that both have written, once."""
    fleet = Fleet()
    begun = {f"{version}-{number}": version for number in range(4) for version in (OLD, NEW)}
    async with engines.client(Registry()) as (store, clock, client):
        with complaints("resurgam.runtime"):
            async with (
                engines.serve(store, clock, fleet.build(builds[0])) as one,
                engines.serve(store, clock, fleet.build(builds[1])) as two,
            ):
                for entity_id, version in begun.items():
                    await (one, two)[builds.index(version)].start("order", id=entity_id)
                early, cursor = await seen_by(one.engine.store)
                for entity_id in begun:
                    await client.handle(entity_id).signal("go", "x")
                await settle(one, two)
                for entity_id, version in begun.items():
                    await check_run(client, fleet, entity_id, OUTCOME[version])
                late, _ = await seen_by(two.engine.store, cursor)
        logs = {entity_id: await client.handle(entity_id).history() for entity_id in begun}
        assert {entity_id: early[entity_id] + late[entity_id] for entity_id in begun} == {
            entity_id: [entry.seq for entry in log] for entity_id, log in logs.items()
        }
        stats = await store.inspector.stats()
        assert (stats.dead_instances, stats.dead_activities) == (0, 0)


@pytest.mark.parametrize(("fits", "other"), [(OLD, NEW), (NEW, OLD)], ids=["new parks", "old parks"])
async def test_a_parked_run_is_offered_once_to_each_start_and_taken_by_the_build_that_fits(
    engines: Engines, fits: str, other: str
) -> None:
    """Which may start much later; what has come for the run meanwhile is there. Other workers are not troubled again."""
    fleet = Fleet()
    ids = [f"o-{number}" for number in range(3)]
    async with engines.client(Registry()) as (store, clock, client):
        claims: Any = Claims(store)
        async with engines.serve(store, clock, fleet.build(fits)) as env:
            for entity_id in ids:
                await env.start("order", id=entity_id)
        with complaints("resurgam.runtime") as said:
            async with (
                engines.serve(claims, clock, fleet.build(other), name="first") as first,
                engines.serve(claims, clock, fleet.build(other), name="second") as second,
            ):
                for entity_id in ids:
                    await client.handle(entity_id).signal("aside")
                await settle(first, second)
                await first.advance(HOUR)
                for entity_id in ids:
                    await client.handle(entity_id).signal("go", "x")
                await settle(first, second)
                assert {(await client.handle(entity_id).describe()).status for entity_id in ids} == {Status.DIVERGED}
                assert claims.made == {(name, entity_id): 1 for name in ("first", "second") for entity_id in ids}
                async with engines.serve(claims, clock, fleet.build(fits), name="third") as third:
                    await settle(third, first, second)
        assert len(said) == 2 * len(ids)
        for entity_id in ids:
            await check_run(client, fleet, entity_id, OUTCOME[fits])
            assert (await types_of(client.handle(entity_id))).count("workflow_diverged") == 1
            assert [claims.made[name, entity_id] for name in ("first", "second")] == [1, 1]
            assert claims.made["third", entity_id] >= 1


async def test_a_run_that_new_code_has_carried_on_is_left_to_new_code(engines: Engines) -> None:
    """Code that was changed with care replays the runs of both builds; the old code only those that it knows all of."""
    fleet = Fleet()
    async with engines.client(Registry()) as (store, clock, client):
        async with engines.serve(store, clock, fleet.gated(OLD)) as old:
            for entity_id in ("taken", "left"):
                await old.start("order", id=entity_id)
        async with engines.serve(store, clock, fleet.gated(NEW)) as new:
            await client.handle("taken").signal("go", "x")
            await settle(new)
        assert fleet.ran["taken", "check"] == 1
        with complaints("resurgam.runtime") as said:
            async with engines.serve(store, clock, fleet.gated(OLD)) as old:
                for entity_id in ("taken", "left"):
                    await client.handle(entity_id).signal("more", "y")
                await client.handle("left").signal("go", "x")
                await settle(old)
                assert (await client.handle("taken").describe()).status is Status.DIVERGED
                await check_run(client, fleet, "left", ["reserved", "x", "y", "shipped"])
                async with engines.serve(store, clock, fleet.gated(NEW)) as new:
                    await settle(new, old)
        assert len(said) == 1
        await check_run(client, fleet, "taken", ["reserved", "x", "y", "shipped"])


async def test_careful_changes_are_rolled_out_under_runs_that_go_on(engines: Engines) -> None:
    """Both builds are there from the start of the runs to their end: each has one outcome, and runs nothing twice."""
    fleet = Fleet()
    ids = [f"o-{number}" for number in range(6)]
    async with engines.client(Registry()) as (store, clock, client):
        with complaints("resurgam.runtime"):
            async with (
                engines.serve(store, clock, fleet.gated(OLD)) as old,
                engines.serve(store, clock, fleet.gated(NEW)) as new,
            ):
                for number, entity_id in enumerate(ids):
                    await (old, new)[number % 2].start("order", id=entity_id)
                for name, value in (("go", "x"), ("more", "y")):
                    for entity_id in ids:
                        await client.handle(entity_id).signal(name, value)
                    await settle(old, new)
        for entity_id in ids:
            await check_run(client, fleet, entity_id, ["reserved", "x", "y", "shipped"])


async def test_a_worker_that_does_not_know_a_workflow_leaves_it_to_one_beside_it_that_does(engines: Engines) -> None:
    """Wherever the run comes: nothing is written about it into its log."""
    fleet = Fleet()
    ids = [f"o-{number}" for number in range(6)]
    async with engines.client(Registry()) as (store, clock, client):
        with complaints("resurgam.worker"):
            async with (
                engines.serve(store, clock, fleet.activities()) as ignorant,
                engines.serve(store, clock, fleet.build(NEW)) as knowing,
            ):
                for number, entity_id in enumerate(ids):
                    await (client, knowing.engine)[number % 2].start("order", id=entity_id)
                await settle(ignorant, knowing)
                for entity_id in ids:
                    await client.handle(entity_id).signal("go", "x")
                await settle(ignorant, knowing)
        for entity_id in ids:
            await check_run(client, fleet, entity_id, OUTCOME[NEW])
            log = await client.handle(entity_id).history()
            assert types(log) == [
                *("workflow_started", "activity_scheduled", "activity_completed", "listen_started"),
                *("signal_received", "signals_consumed", "activity_scheduled", "activity_completed"),
                *("workflow_completed", "workflow_deactivated"),
            ]


async def test_runs_that_no_worker_knew_are_taken_up_by_one_that_starts_later(engines: Engines) -> None:
    """While they are parked they can be asked about, signalled, cancelled and terminated."""
    fleet = Fleet()
    ids = [f"o-{number}" for number in range(5)]
    async with engines.client(Registry()) as (store, clock, client):
        handles = [await client.start("order", id=entity_id) for entity_id in ids]
        with complaints("resurgam.worker") as said:
            async with engines.serve(store, clock, fleet.activities()) as ignorant:
                await ignorant.settle()
                await ignorant.advance(HOUR)
                assert {(await handle.describe()).status for handle in handles} == {Status.DIVERGED}
                for handle in handles[:3]:
                    await handle.signal("go", "x")
                await handles[3].cancel()
                await handles[4].terminate()
                async with engines.serve(store, clock, fleet.build(OLD)) as knowing:
                    await settle(knowing, ignorant)
        assert len(said) == len(ids)
        for handle in handles[:3]:
            await check_run(client, fleet, handle.entity_id, OUTCOME[OLD])
        assert [(await handle.describe()).status for handle in handles[3:]] == [Status.CANCELLED, Status.TERMINATED]


@pytest.mark.parametrize("change", ["added", "another signature"])
async def test_an_activity_that_a_build_does_not_know_is_left_to_the_other(engines: Engines, change: str) -> None:
    """It costs no attempt, however often the wrong worker claims it."""

    def build(version: str) -> Registry:
        registry = Registry()
        if version == NEW:

            @registry.activity(retry=RetryPolicy(max_attempts=1))
            async def ship(order: str, express: bool = False) -> str:
                return f"{order} shipped"

        elif change == "another signature":

            @registry.activity(name="ship", retry=RetryPolicy(max_attempts=1))
            async def ship_slowly(order: str) -> str:
                return f"{order} shipped"

        @registry.workflow(name="order" if version == NEW else "other")
        async def order(ctx: Context) -> list[str]:
            once = activity.ref("ship", returns=str).options(retry=RetryPolicy(max_attempts=1))
            return list(await asyncio.gather(*(ctx.activity(once, f"o-{number}", True) for number in range(12))))

        return registry

    async with engines.client(Registry()) as (store, clock, _):
        async with (
            engines.serve(store, clock, build(OLD)) as old,
            engines.serve(store, clock, build(NEW)) as new,
        ):
            await settle(old, new)
            handle = await new.start("order", id="o")
            for _ in range(40):
                await settle(old, new)
                await old.advance(1)
            assert await handle.result(timeout=0) == [f"o-{number} shipped" for number in range(12)]
            assert not of_kind(await handle.history(), events.ActivityRetryScheduled)


@pytest.mark.engines("memory-cached", "sqlite-cached")
async def test_an_activity_that_no_build_knows_fails_in_the_end(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After it was left to others for a while, which is shorter here."""
    monkeypatch.setattr("resurgam.worker.slots._LEFT_FOR", 30_000)

    def build(version: str) -> Registry:
        registry = Registry()

        @registry.workflow(name=f"order of {version}")
        async def order(ctx: Context) -> None:
            await ctx.activity(activity.ref("missing").options(retry=RetryPolicy(max_attempts=1), queue="default"))

        return registry

    async with engines.client(Registry()) as (store, clock, client):
        async with (
            engines.serve(store, clock, build(OLD)) as old,
            engines.serve(store, clock, build(NEW)) as new,
        ):
            await settle(old, new)
            handle, begun = await client.start("order of new", id="o"), clock.now()
            for _ in range(200):
                await settle(old, new)
                await old.advance(1)
                if (await handle.describe()).status is Status.FAILED:
                    break
            assert clock.now() - begun >= 30_000
            with pytest.raises(WorkflowFailed, match="missing"):
                await handle.result(timeout=0)


async def test_a_worker_does_not_claim_what_it_does_not_know_with_its_own_commit(engines: Engines) -> None:
    """The old build advances the runs; the activity that they call is in the new one only."""

    def build(version: str) -> Registry:
        registry = Registry()

        @registry.workflow(queue=version)
        async def order(ctx: Context) -> str:
            once = activity.ref("ship", returns=str).options(retry=RetryPolicy(max_attempts=1), queue="default")
            return await ctx.activity(once)

        if version == NEW:

            @registry.activity
            async def ship() -> str:
                return "shipped"

        return registry

    async with engines.client(Registry()) as (store, clock, client):
        async with (
            engines.serve(store, clock, build(OLD), queues=["default", OLD]) as old,
            engines.serve(store, clock, build(NEW)) as new,
        ):
            await settle(old, new)
            handles = [await client.start("order", id=f"o-{number}", queue=OLD) for number in range(4)]
            for _ in range(20):
                await settle(old, new)
                await old.advance(1)
            assert [await handle.result(timeout=0) for handle in handles] == ["shipped"] * 4


@pytest.mark.engines("memory-cached", "sqlite-cached")
async def test_an_activity_that_is_being_left_to_another_build_is_released_when_its_worker_stops(
    engines: Engines,
) -> None:
    """It has not begun, and one that must not begin twice would otherwise count as begun and lost."""
    gate = asyncio.Event()

    def build(version: str) -> Registry:
        registry = Registry()

        @registry.workflow(name=f"order of {version}")
        async def order(ctx: Context) -> str:
            once = RetryPolicy(max_attempts=1, redeliver=False)
            return await ctx.activity(activity.ref("ship", returns=str).options(retry=once, queue="default"))

        if version == NEW:

            @registry.activity
            async def ship() -> str:
                return "shipped"

            @registry.activity
            async def block() -> None:
                await gate.wait()

            @registry.workflow
            async def busy(ctx: Context) -> None:
                await ctx.activity(block)

        return registry

    async with engines.client(Registry()) as (store, clock, client):
        async with engines.serve(store, clock, build(NEW), max_activities=1) as new:
            await client.start("busy", id="busy")
            await settle(new)
            async with engines.serve(store, clock, build(OLD), grace=0) as old:
                await settle(old, new)
                handle = await client.start("order of new", id="o")
                await settle(new, old)
                assert not (await client.handle("o").describe()).status.terminal
            gate.set()
            for _ in range(20):
                await settle(new)
                await new.advance(1)
            assert await handle.result(timeout=0) == "shipped"
