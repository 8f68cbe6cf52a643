"""The catalog of steps: registered, updated, removed, by one client or several at the same time."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from resurgam.client.listing import Kind
from resurgam.core import flow_event as fe
from resurgam.core.errors import AlreadyExists, DefinitionError, NotFound, StoreError
from resurgam.engine import Engine
from resurgam.flows import FlowStep, ScriptStep, StepDecorator
from resurgam.flows import model as m
from resurgam.flows.catalog import Health
from resurgam.flows.stored_catalog import CatalogReader
from resurgam.runtime.context.context import Context
from resurgam.runtime.registry import Registry
from resurgam.store import records as r
from resurgam.store.protocol import Store
from resurgam.testing.contract.bench import LEASE
from support.engines import Engines, types
from support.health import set_health
from support.order_flow import Shop

DOUBLE = ScriptStep("double", "return {twice = 2 * n}", inputs={"n": int}, outputs={"twice": int})
OTHER = ScriptStep("double", "return {twice = n + n}", inputs={"n": int}, outputs={"twice": int})


async def test_a_client_without_a_worker_registers_updates_and_removes_steps(engines: Engines) -> None:
    """No worker runs: the client serves the catalog itself. Its log holds what was done, and nothing else."""
    async with engines.client(Registry()) as (store, _, engine):
        assert await engine.register_step(DOUBLE)
        assert not await engine.register_step(DOUBLE)
        with pytest.raises(AlreadyExists, match="step 'double' is registered with another definition; use update_step"):
            await engine.register_step(OTHER)
        assert await engine.steps() == [DOUBLE]
        assert await engine.update_step(OTHER)
        assert not await engine.update_step(OTHER)
        assert await engine.steps() == [OTHER]
        await engine.remove_step("double")
        assert await engine.steps() == []
        with pytest.raises(NotFound, match="there is no step 'double' in the catalog to update; use register_step"):
            await engine.update_step(DOUBLE)
        with pytest.raises(NotFound, match="there is no step 'double' in the catalog"):
            await engine.remove_step("double")
        found = await store.inspector.get("catalog")
        assert found is not None
        assert found.kind == "catalog"
        log = await store.read(found)
        assert types(log) == ["catalog_started", "step_registered", "step_updated", "step_unregistered"]
        assert [entry.seq for entry in log] == [1, 2, 3, 4]


async def test_every_client_sees_the_steps_that_another_has_registered(engines: Engines) -> None:
    """What a client keeps of the catalog is never older than its last call."""
    async with engines.client(Registry()) as (store, clock, engine):
        async with Engine(store, registry=Registry(), clock=clock, worker=False) as other:
            assert await other.steps() == []
            await engine.register_step(DOUBLE)
            assert await other.steps() == [DOUBLE]
            await engine.remove_step("double")
            assert await other.steps() == []


async def test_of_two_clients_at_once_one_registers_a_step_and_the_other_is_told(engines: Engines) -> None:
    """Both have seen a catalog without the step; the brain decides, and the one that came later gets the usual error."""
    async with engines.client(Registry()) as (store, clock, engine):
        async with Engine(store, registry=Registry(), clock=clock, worker=False) as other:
            both = await asyncio.gather(
                engine.register_step(DOUBLE), other.register_step(OTHER), return_exceptions=True
            )
            assert sorted(type(one).__name__ for one in both) == ["AlreadyExists", "bool"]
            assert len(await engine.steps()) == 1


async def test_of_two_clients_with_equal_definitions_exactly_one_has_added_it(engines: Engines) -> None:
    async with engines.client(Registry()) as (store, clock, engine):
        async with Engine(store, registry=Registry(), clock=clock, worker=False) as other:
            both = await asyncio.gather(engine.register_step(DOUBLE), other.register_step(DOUBLE))
            assert sorted(both) == [False, True]


async def test_a_client_that_died_with_the_catalog_in_its_hands_holds_up_nobody_for_long(engines: Engines) -> None:
    """Its lease expires, and the client that waits serves the catalog."""
    async with engines.client(Registry()) as (store, clock, engine):
        await engine.register_step(ScriptStep("first", "return 1"))
        found = await store.inspector.get("catalog")
        assert found is not None
        lost = fe.StepUnregistered(id="lost", step_id="first")
        await store.deliver([r.Delivery(event=lost, entity_id="catalog")])
        [_] = await store.claim("dead", (fe.CATALOG_QUEUE,), 1)
        waiting = asyncio.ensure_future(engine.register_step(DOUBLE))
        while not waiting.done() and len((await _work_of(store, found)).inbox) < 2:
            await asyncio.sleep(0)
        assert not waiting.done()
        clock.move_to(clock.now() + LEASE + 1)
        assert await waiting
        assert [step.id for step in await engine.steps()] == ["double"]


async def _work_of(store: Store, found: r.Instance) -> r.OpenWork:
    work = await store.inspector.open_work(found)
    assert work is not None
    return work


class Dying:
    """A store that fails from its n-th write on, before that is applied or after."""

    def __init__(self, store: Store, at: int, *, applied: bool) -> None:
        self._store = store
        self._at, self._applied = at, applied
        self.writes = 0

    def __getattr__(self, verb: str) -> Any:
        member = getattr(self._store, verb)
        if verb not in ("create", "deliver", "claim", "commit", "release"):
            return member

        async def call(*args: Any) -> Any:
            self.writes += 1
            if self.writes < self._at or (self.writes == self._at and self._applied):
                answer = await member(*args)
                if self.writes < self._at:
                    return answer
            raise StoreError("the process has died")

        return call


async def test_a_client_may_die_at_any_write_and_another_finishes(engines: Engines) -> None:
    """The step is there once, whatever the first has left: nothing, a request, or a lease on the catalog."""
    at, dead = 0, True
    while dead:
        at += 1
        for applied in (False, True):
            async with engines.client(Registry()) as (store, clock, engine):
                dying = Dying(store, at, applied=applied)
                first = Engine(dying, registry=Registry(), clock=clock, worker=False)  # type: ignore[arg-type]
                async with first:
                    try:
                        dead = not await first.register_step(DOUBLE)
                    except StoreError:
                        dead = True
                clock.move_to(clock.now() + LEASE + 1)
                await engine.register_step(DOUBLE)
                await engine.register_step(ScriptStep("other", "return 1"))
                assert [step.id for step in await engine.steps()] == ["double", "other"]
                found = await CatalogReader(store).instance()
                assert found is not None
                assert types(await store.read(found)).count("step_registered") == 2, (at, applied)
    assert at > 4


async def test_functions_of_the_registry_are_in_the_catalog_when_the_worker_starts(engines: Engines) -> None:
    """And replaced by those of a newer program, without an update by hand; equal ones leave no entry."""
    shop = Shop()
    async with engines.open(shop.registry) as env:
        store, reader = env.engine.store, CatalogReader(env.engine.store)
        assert [*(await reader.read()).steps] == ["order", "price", "shipment"]
        found = await reader.instance()
        assert found is not None
        async with Engine(store, registry=Shop().registry, clock=env.clock, worker=False) as same:
            assert len(await same.steps()) == 3
        assert types(await store.read(found)) == ["catalog_started", *["step_registered"] * 3]
        newer = Registry()

        @StepDecorator(newer)
        def price(items: list[str]) -> int:
            return 0

        async with Engine(store, registry=newer, clock=env.clock, worker=False) as client:
            [changed] = [step for step in await client.steps() if step.id == "price"]
        assert sorted(changed.inputs) == ["items"]
        assert types(await store.read(found))[-1] == "step_updated"


async def test_a_function_that_does_not_fit_the_catalog_keeps_the_engine_from_opening(engines: Engines) -> None:
    """The error names both steps and the attribute, before anything runs by it."""
    registry = Registry()

    @StepDecorator(registry)
    def halve(twice: str) -> str:
        return twice

    async with engines.client(Registry()) as (store, clock, engine):
        await engine.register_step(DOUBLE)
        with pytest.raises(
            DefinitionError, match="attribute 'twice' has type 'string' here and 'number' in step 'double'"
        ):
            async with Engine(store, registry=registry, clock=clock):
                pass


async def test_a_step_that_needs_its_own_output_is_refused(engines: Engines) -> None:
    async with engines.client(Registry()) as (_, _, engine):
        await engine.register_step(DOUBLE)
        with pytest.raises(DefinitionError, match="step 'halve' needs its own output: halve -> double -> halve"):
            await engine.register_step(ScriptStep("halve", "return {n = 1}", inputs=["twice"], outputs=["n"]))


async def test_a_flow_step_that_contains_itself_is_refused(engines: Engines) -> None:
    async with engines.client(Registry()) as (_, _, engine):
        await engine.register_step(FlowStep("inner", ["outer"]))
        with pytest.raises(DefinitionError, match="step 'outer' is a goal of its own flow: outer -> inner -> outer"):
            await engine.register_step(FlowStep("outer", ["inner"]))


SERVICE = m.Step(id="call", name="Call", type="sync", http=m.HttpConfig(endpoint="http://localhost"))


async def test_the_health_of_a_service_is_recorded_when_it_changes(engines: Engines) -> None:
    async with engines.client(Registry()) as (_, _, engine):
        await engine.register_step(SERVICE)
        assert await engine.step_health("call") == Health()
        assert await set_health(engine, "call", "unhealthy", "503")
        assert not await set_health(engine, "call", "unhealthy", "503")
        assert await engine.step_health("call") == Health("unhealthy", "503")
        assert await set_health(engine, "call", "healthy")
        log = await engine.handle("catalog").history(forgotten=True)
        assert [entry.type for entry in log[2:]] == ["step_health_changed", "step_health_changed"]


async def test_a_service_that_comes_and_goes_does_not_make_the_catalog_longer_to_read(engines: Engines) -> None:
    async with engines.client(Registry()) as (_, _, engine):
        await engine.register_step(SERVICE)
        await engine.register_step(replace(SERVICE, id="other"))
        await set_health(engine, "other", "healthy")
        for _ in range(3):
            await set_health(engine, "call", "unhealthy")
            await set_health(engine, "call", "healthy")
        log = await engine.handle("catalog").history()
        assert [entry.seq for entry in log] == [1, 2, 3, 4, 10]
        assert await engine.step_health("call") == await engine.step_health("other") == Health("healthy")


async def test_a_changed_or_removed_service_has_an_unknown_health(engines: Engines) -> None:
    async with engines.client(Registry()) as (_, _, engine):
        await engine.register_step(SERVICE)
        await set_health(engine, "call", "unhealthy")
        await engine.update_step(replace(SERVICE, name="Other"))
        assert await engine.step_health("call") == Health()
        await set_health(engine, "call", "unhealthy")
        await engine.remove_step("call")
        with pytest.raises(NotFound, match="there is no step 'call'"):
            await set_health(engine, "call", "healthy")
        await engine.register_step(SERVICE)
        assert (await CatalogReader(engine.store).read()).health("call") == Health()


async def test_only_services_have_a_health(engines: Engines) -> None:
    async with engines.client(Registry()) as (_, _, engine):
        await engine.register_step(FlowStep("outer", ["inner"]))
        with pytest.raises(DefinitionError, match="step 'outer' is no service"):
            await set_health(engine, "outer", "healthy")


async def test_a_wrong_script_is_refused_with_its_place(engines: Engines) -> None:
    async with engines.client(Registry()) as (_, _, engine):
        with pytest.raises(DefinitionError, match="step 'wrong': script: "):
            await engine.register_step(ScriptStep("wrong", "return ("))
        with pytest.raises(DefinitionError, match="step 'wrong': predicate: "):
            await engine.register_step(ScriptStep("wrong", "return 1", predicate="1 +"))


async def test_a_workflow_with_the_id_of_the_catalog_is_named_in_the_error(engines: Engines) -> None:
    registry = Registry()

    @registry.workflow
    async def shop(ctx: Context) -> None: ...

    async with engines.client(registry) as (_, _, engine):
        await engine.start(shop, id="catalog")
        with pytest.raises(StoreError, match="has the id 'catalog', which an open execution of 'shop' uses"):
            await engine.register_step(DOUBLE)


async def test_a_catalog_that_was_terminated_begins_anew(engines: Engines) -> None:
    """It is empty, and programs fill it again when they start."""
    async with engines.client(Registry()) as (_, _, engine):
        await engine.register_step(DOUBLE)
        await engine.handle("catalog").terminate()
        assert await engine.steps() == []
        assert await engine.register_step(OTHER)
        assert await engine.steps() == [OTHER]


async def test_a_paused_catalog_says_how_to_resume_it(engines: Engines) -> None:
    async with engines.client(Registry()) as (_, _, engine):
        await engine.register_step(DOUBLE)
        await engine.handle("catalog").pause()
        with pytest.raises(StoreError, match=r"the catalog of steps is paused; call handle\('catalog'\).resume\(\)"):
            await engine.register_step(ScriptStep("other", "return 1"))
        await engine.handle("catalog").resume()
        assert await engine.register_step(ScriptStep("other", "return 1"))


async def test_lists_show_flows_and_workflows_but_not_the_catalog(engines: Engines) -> None:
    shop = Shop()
    async with engines.open(shop.registry) as env:
        await env.finish((await env.engine.start_flow(["order"], {"order_id": "o-1"}, id="f")).result())
        assert [found.entity_id for found in (await env.engine.list()).instances] == ["f"]


async def test_a_client_puts_its_functions_into_the_catalog_that_follows_a_terminated_one(engines: Engines) -> None:
    """What it has defined before was in the other one."""
    shop = Shop()
    async with engines.open(shop.registry) as env:
        await env.engine.start_flow(["order"], {"order_id": "o-1"})
        await env.engine.handle("catalog").terminate()
        flow = await env.engine.start_flow(["order"], {"order_id": "o-2"})
        assert (await env.finish(flow.result()))["customer"] == "customer of o-2"
        assert {"order", "price", "shipment"} == {step.id for step in await env.engine.steps()}


async def test_workflows_and_flows_are_listed_together_or_apart(engines: Engines) -> None:
    """The description of each says which of them it is."""
    registry = Registry()

    @registry.workflow
    async def one(ctx: Context) -> None: ...

    async with engines.client(registry) as (_, clock, engine):
        await engine.register_step(DOUBLE)
        for number in range(2):
            await engine.start(one, id=f"w-{number}", tags={"number": str(number)})
            await engine.start_flow(["double"], {"n": number}, id=f"f-{number}", tags={"number": str(number)})
            clock.move_to(clock.now() + 1)

        async def listed(kind: Kind | None = None, **filters: Any) -> set[str]:
            return {found.entity_id for found in (await engine.list(kind=kind, **filters)).instances}

        assert await listed() == {"w-0", "w-1", "f-0", "f-1"}
        assert await listed("workflow") == {"w-0", "w-1"}
        assert await listed("flow") == {"f-0", "f-1"}
        assert await listed("flow", tags={"number": "1"}) == {"f-1"}
        newest = await engine.list(kind="flow", limit=1)
        assert await listed("flow", cursor=newest.cursor) == {"f-0"}
        assert [(await engine.handle(name).describe()).kind for name in ("w-0", "f-0")] == ["workflow", "flow"]


async def test_a_page_of_a_list_is_full_though_the_catalog_is_left_out(engines: Engines) -> None:
    registry = Registry()

    @registry.workflow
    async def early(ctx: Context) -> None: ...

    async with engines.client(registry) as (_, clock, engine):
        for number in range(3):
            await engine.start(early, id=f"early-{number}")
            clock.move_to(clock.now() + 1)
        await engine.register_step(DOUBLE)  # the newest instance is the catalog
        found, cursor = list[str](), None
        while not found or cursor is not None:
            page = await engine.list(limit=1, cursor=cursor)
            assert len(page.instances) == 1
            found.append(page.instances[0].entity_id)
            cursor = page.cursor
        assert found == ["early-2", "early-1", "early-0"]
