"""What callers do with flows: start, plan, wait, pause, cancel, terminate, list, describe, export, purge."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any

import pytest

from resurgam.core import event as events
from resurgam.core.errors import (
    AlreadyExists,
    DefinitionError,
    NonRetryable,
    NotFound,
    ResultTimeout,
    SerializationError,
    StoreError,
    WorkflowCancelled,
    WorkflowFailed,
    WorkflowTerminated,
)
from resurgam.core.retry import RetryPolicy
from resurgam.core.state import Status
from resurgam.engine import Engine
from resurgam.flows import Input, Meta, StepDecorator
from resurgam.runtime.context.context import Context
from resurgam.runtime.registry import Registry
from resurgam.store.move.move import Move
from resurgam.testing.clock import ManualClock
from resurgam.testing.environment import Environment
from support.engines import Engines, slip_in, types_of
from support.order_flow import Shop

GIVEN = {"order_id": "o-1"}
RESULT = {"shipment": "customer of o-1 pays 20"}


async def test_a_flow_runs_the_steps_that_lead_to_its_goal(engines: Engines) -> None:
    """Each once, and its result are the outputs of the goal by name."""
    shop = Shop()
    async with engines.open(shop.registry) as env:
        flow = await env.engine.start_flow(["shipment"], GIVEN, id="f")
        assert await env.finish(flow.result()) == RESULT
        assert shop.calls == ["order", "price", "shipment"]
        found = await env.engine.store.inspector.get("f")
        assert found is not None
        assert (found.kind, found.name, found.status) == ("flow", "shipment", Status.COMPLETED)
        told = await types_of(flow)
        assert told[:2] == ["flow_started", "flow_activated"]
        assert told[-3:] == ["flow_completed", "flow_digest_updated", "flow_deactivated"]


async def test_goals_are_names_functions_or_definitions(engines: Engines) -> None:
    registry = Registry()

    @StepDecorator(registry)
    def one() -> int:
        return 1

    @StepDecorator(registry)
    def two() -> int:
        return 2

    async with engines.open(registry) as env:
        [defined, _] = await env.engine.steps()
        flow = await env.engine.start_flow([defined, two])
        assert await env.finish(flow.result()) == {"one": 1, "two": 2}
        assert (await env.engine.list(name="one,two")).instances[0].entity_id == flow.entity_id


async def test_the_same_start_again_gives_the_flow_that_is_there_open_or_closed(engines: Engines) -> None:
    """Nothing runs twice; another goal or another value under that id is refused."""
    shop = Shop()
    shop.may_price.clear()
    async with engines.open(shop.registry) as env:
        first = await env.engine.start_flow(["shipment"], GIVEN, id="f")
        await env.settle()
        again = await env.engine.start_flow(["shipment"], GIVEN, id="f", tags={"ignored": "yes"})
        assert again.run_id == first.run_id
        shop.may_price.set()
        assert await env.finish(again.result()) == RESULT
        later = await env.engine.start_flow(["shipment"], GIVEN, id="f")
        assert (later.run_id, await later.result()) == (first.run_id, RESULT)
        with pytest.raises(
            AlreadyExists, match="id 'f' belongs to another flow with other goals or values, 'shipment'"
        ):
            await env.engine.start_flow(["shipment"], {"order_id": "o-2"}, id="f")
        with pytest.raises(AlreadyExists, match="id 'f' belongs to another flow with other goals or values"):
            await env.engine.start_flow(["price"], GIVEN, id="f")
        assert shop.calls == ["order", "price", "shipment"]


async def test_a_start_with_another_value_is_another_flow_though_python_calls_them_equal(engines: Engines) -> None:
    """``1`` and ``true`` are two values in JSON; ``1`` and ``1.0`` are one, and so are objects in another order."""
    shop = Shop()
    async with engines.client(shop.registry) as (_, _, engine):
        first = await engine.start_flow(["order"], {"order_id": 1, "more": {"a": [True, None], "b": 0}}, id="f")
        again = await engine.start_flow(["order"], {"order_id": 1.0, "more": {"b": 0, "a": [True, None]}}, id="f")
        assert again.run_id == first.run_id
        for order_id, more in ((True, {"a": [True, None], "b": 0}), (1, {"a": [1, None], "b": 0}), (1, {"a": [True]})):
            with pytest.raises(AlreadyExists, match="id 'f' belongs to another flow with other goals or values"):
                await engine.start_flow(["order"], {"order_id": order_id, "more": more}, id="f")


async def test_a_start_with_deeply_nested_values_can_be_repeated(engines: Engines) -> None:
    """As deeply as a value can be recorded at all."""
    shop = Shop()
    values = [nested(700, bottom) for bottom in (1, 1.0, 2)]
    async with engines.client(shop.registry) as (_, _, engine):
        first = await engine.start_flow(["order"], {"order_id": "o-1", "more": values[0]}, id="f")
        again = await engine.start_flow(["order"], {"order_id": "o-1", "more": values[1]}, id="f")
        assert again.run_id == first.run_id
        with pytest.raises(AlreadyExists):
            await engine.start_flow(["order"], {"order_id": "o-1", "more": values[2]}, id="f")


def nested(depth: int, bottom: object) -> object:
    for number in range(depth):
        bottom = [bottom] if number % 2 else {"in": bottom}
    return bottom


async def test_a_repeated_start_reads_one_entry_of_the_flow(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long its log has become."""
    shop = Shop()
    async with engines.open(shop.registry) as env:
        await env.finish((await env.start_flow(["shipment"], GIVEN, id="f")).result())
        inspector, read = env.engine.store.inspector, list[int]()
        history = inspector.history

        async def counted(*args: Any, **options: Any) -> Sequence[events.Event]:
            found = await history(*args, **options)
            read.append(len(found))
            return found

        monkeypatch.setattr(inspector, "history", counted)
        await env.engine.start_flow(["shipment"], GIVEN, id="f")
        assert read == [1]


async def test_an_attribute_may_be_given_several_values(engines: Engines) -> None:
    """A step that collects gets all of them in order; a name with an empty list is not given, and not part of the start."""
    registry = Registry()

    @StepDecorator(registry)
    def total(prices: Annotated[list[Any], Input(collect="all")], rate: int = 7) -> list[Any]:
        return [*prices, rate]

    async with engines.open(registry) as env:
        given = {"prices": [1, [2]], "rate": []}
        flow = await env.engine.start_flow(["total"], given, id="f", many=True)
        assert await env.finish(flow.result()) == {"total": [1, [2], 7]}
        again = await env.engine.start_flow([total], {"prices": (1, [2])}, id="f", many=True)
        assert again.run_id == flow.run_id
        for other in ({"prices": [[2], 1]}, {"prices": [1, [2]], "rate": [None]}):
            with pytest.raises(AlreadyExists):
                await env.engine.start_flow(["total"], other, id="f", many=True)
        assert (await env.engine.plan(["total"], given, many=True)).required == ()
        assert (await env.engine.plan(["total"], {"prices": []}, many=True)).required == ("prices",)
        with pytest.raises(TypeError, match=r"init\['prices'\] must be a list of values, got 'ab'"):
            await env.engine.start_flow(["total"], {"prices": "ab"}, many=True)


async def test_a_start_is_repeated_though_its_steps_are_gone(engines: Engines) -> None:
    """The flow that is there goes by its own plan; another flow cannot be planned any more."""
    shop = Shop()
    async with engines.open(shop.registry) as env:
        first = await env.start_flow(["shipment"], GIVEN, id="f")
        await env.engine.remove_step("order")
        await env.engine.remove_step("shipment")
        again = await env.engine.start_flow(["shipment"], GIVEN, id="f")
        assert (again.run_id, await again.result()) == (first.run_id, RESULT)
        for flow_id, given in (("g", GIVEN), ("f", {"order_id": "o-2"})):
            with pytest.raises(NotFound, match="there is no step 'shipment' in the catalog"):
                await env.engine.start_flow(["shipment"], given, id=flow_id)


async def test_of_two_equal_starts_at_once_one_flow_comes(engines: Engines) -> None:
    shop = Shop()
    async with engines.open(shop.registry) as env:
        starts = [env.engine.start_flow(["shipment"], GIVEN, id="f") for _ in range(3)]
        flows = await asyncio.gather(*starts)
        assert len({flow.run_id for flow in flows}) == 1
        assert await env.finish(flows[-1].result()) == RESULT
        assert shop.calls == ["order", "price", "shipment"]


async def test_a_flow_that_no_worker_serves_says_so(engines: Engines) -> None:
    shop = Shop()
    async with engines.client(shop.registry) as (_, _, engine):
        flow = await engine.start_flow(["order"], GIVEN, queue="slow")
        assert (await flow.describe()).waiting_for == ("a worker that serves queue 'slow'",)
        catalog = await engine.handle("catalog").describe()
        assert (catalog.status, catalog.waiting_for, catalog.history_length) == (Status.RUNNING, (), 4)


async def test_the_id_of_a_workflow_is_not_given_to_a_flow(engines: Engines) -> None:
    shop = Shop()

    @shop.registry.workflow
    async def work(ctx: Context) -> None: ...

    async with engines.open(shop.registry) as env:
        await env.start(work, id="w")
        with pytest.raises(AlreadyExists, match=r"id 'w' belongs to another workflow, 'work' \(completed\)"):
            await env.engine.start_flow(["order"], GIVEN, id="w")


async def test_a_flow_keeps_the_steps_that_it_started_with(engines: Engines) -> None:
    """An update and a removal count for flows that start later."""
    shop = Shop()
    shop.may_price.clear()
    async with engines.open(shop.registry) as env:
        flow = await env.engine.start_flow(["shipment"], GIVEN)
        await env.settle()
        await env.engine.remove_step("shipment")
        shop.may_price.set()
        assert await env.finish(flow.result()) == RESULT
        with pytest.raises(NotFound, match="there is no step 'shipment' in the catalog"):
            await env.engine.start_flow(["shipment"], GIVEN)


async def test_bad_starts_are_refused_by_one_error_each_and_leave_nothing(engines: Engines) -> None:
    """The message names what is wrong and what to do."""
    shop = Shop()
    async with engines.open(shop.registry) as env:
        engine: Engine = env.engine
        with pytest.raises(NotFound, match="there is no step 'rocket' in the catalog; `resurgam step list` shows"):
            await engine.start_flow(["rocket"])
        with pytest.raises(DefinitionError, match="required inputs not provided: order_id; give them in init"):
            await engine.start_flow(["shipment"])
        with pytest.raises(DefinitionError, match="a flow needs a goal"):
            await engine.start_flow([])
        with pytest.raises(TypeError, match=r"goals must be a list of steps, such as \['ship'\], got 'shipment'"):
            await engine.start_flow("shipment")
        with pytest.raises(DefinitionError, match="a step must be a function with @step"):
            await engine.start_flow([print])
        with pytest.raises(ValueError, match="id must be a non-empty string, got ''"):
            await engine.start_flow(["order"], GIVEN, id="")
        with pytest.raises(ValueError, match="queue must be a non-empty string, got ''"):
            await engine.start_flow(["order"], GIVEN, queue="")
        with pytest.raises(TypeError, match=r"init must be a mapping of names to values, got \['o-1'\]"):
            await engine.start_flow(["order"], ["o-1"])  # type: ignore[arg-type]
        with pytest.raises(SerializationError, match=r"init\['order_id'\]"):
            await engine.start_flow(["order"], {"order_id": object()})
        with pytest.raises(TypeError, match="metadata must be a mapping"):
            await engine.start_flow(["order"], GIVEN, metadata=["o-1"])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="names and values of tags must be strings"):
            await engine.start_flow(["order"], GIVEN, tags={"a": 1})  # type: ignore[dict-item]
        with pytest.raises(ValueError, match="mode must be 'strict' or 'preview', got 'fast'"):
            await engine.plan(["order"], mode="fast")  # type: ignore[arg-type]
        assert (await engine.list()).instances == ()


async def test_a_plan_says_what_would_run_and_what_is_missing(engines: Engines) -> None:
    shop = Shop()
    async with engines.open(shop.registry) as env:
        preview = await env.engine.plan(["shipment"])
        assert (sorted(preview.steps), preview.required) == (["order", "price", "shipment"], ("order_id",))
        strict = await env.engine.plan(["shipment"], {"price": 3, "customer": "Ada"}, mode="strict")
        assert (sorted(strict.steps), strict.required) == (["shipment"], ())
        assert shop.calls == []


async def test_a_failed_step_is_the_cause_of_the_failed_flow(engines: Engines) -> None:
    registry = Registry()

    @StepDecorator(registry)(retry=RetryPolicy(max_attempts=1))
    def wrong() -> int:
        raise ValueError("no")

    async with engines.open(registry) as env:
        flow = await env.engine.start_flow(["wrong"], id="f")
        with pytest.raises(WorkflowFailed, match=r"^flow 'wrong' \(f\) failed") as failed:
            await env.finish(flow.result())
        assert "no" in str(failed.value)
        found = await flow.describe()
        assert found.status is Status.FAILED
        assert "no" in str(found.error)
        with pytest.raises(StoreError, match="'f' cannot be retried: only workflows can, got kind 'flow'"):
            await flow.retry()


async def test_a_match_that_fails_for_a_given_value_fails_its_step_and_not_the_start(engines: Engines) -> None:
    registry = Registry()

    @StepDecorator(registry)
    def send(order: Annotated[dict[str, int], Input(match="value.weight < 10")]) -> int:
        return 1

    async with engines.open(registry) as env:
        flow = await env.start_flow(["send"], {"order": {"size": 3}})
        with pytest.raises(WorkflowFailed, match=r"step 'send' failed: .*weight"):
            await env.finish(flow.result())


async def test_a_flow_is_described_by_what_it_waits_for_and_what_it_has(engines: Engines) -> None:
    shop = Shop()
    shop.may_price.clear()
    async with engines.open(shop.registry) as env:
        flow = await env.engine.start_flow(["shipment"], GIVEN, id="f", tags={"of": "Ada"})
        await env.settle()
        found = await flow.describe()
        assert (found.status, found.name, found.tags, found.input) == (Status.RUNNING, "shipment", {"of": "Ada"}, GIVEN)
        assert found.state == {"order_id": "o-1", "customer": "customer of o-1", "items": ["book", "lamp"]}
        [work] = found.pending
        assert (work.name, work.kind, work.status) == ("price", "activity", "running")
        assert found.waiting_for == ("step 'price' (work item 2) on queue 'default'",)
        assert await flow.state("customer") == "customer of o-1"
        assert await flow.state("price", "none yet") == "none yet"
        shop.may_price.set()
        await env.finish(flow.result())
        found = await flow.describe()
        assert (found.status, found.result, found.waiting_for, found.pending) == (Status.COMPLETED, RESULT, (), ())
        assert found.deactivated


async def test_work_that_could_not_be_compensated_is_named(engines: Engines) -> None:
    registry = Registry()
    step = StepDecorator(registry)

    async def undo(done: dict[str, object]) -> None:
        raise NonRetryable("gone")

    @step(compensate=undo)
    async def book(room: Annotated[int, Input(for_each=True)]) -> int:
        if room == 2:
            raise NonRetryable("full")
        return room

    async with engines.open(registry) as env:
        flow = await env.start_flow(["book"], {"room": [1, 2]})
        with pytest.raises(WorkflowFailed, match="full"):
            await env.finish(flow.result())
        await env.settle()
        found = await flow.describe()
        assert (found.uncompensated, found.deactivated) == (("work item 1 of step 'book'",), True)


async def test_a_flow_that_waits_for_an_optional_input_says_until_when(engines: Engines) -> None:
    registry = Registry()
    step = StepDecorator(registry)
    may_end = asyncio.Event()

    @step
    async def discount(customer: str) -> int:
        await may_end.wait()
        return 5

    @step
    async def price(items: int, discount: Annotated[int, Input(deadline=60)] = 0) -> int:
        return items - discount

    async with engines.open(registry) as env:
        flow = await env.start_flow(["price"], {"customer": "Ada", "items": 20})
        until = env.now() + timedelta(seconds=60)
        found = await flow.describe()
        assert f"the deadline of an input at {until.isoformat()}" in found.waiting_for
        assert [(work.kind, work.until) for work in found.pending] == [("activity", None), ("timer", until)]
        may_end.set()
        assert await env.finish(flow.result()) == {"price": 15}


async def test_a_paused_flow_starts_nothing_until_it_is_resumed(engines: Engines) -> None:
    shop = Shop()
    shop.may_price.clear()
    async with engines.open(shop.registry) as env:
        flow = await env.engine.start_flow(["shipment"], GIVEN)
        await env.settle()
        await flow.pause(reason="lunch")
        shop.may_price.set()
        await env.settle()
        assert shop.calls == ["order", "price"]
        found = await flow.describe()
        assert (found.status, found.waiting_for[0]) == (Status.PAUSED, "a resume: handle.resume()")
        await flow.resume()
        assert await env.finish(flow.result()) == RESULT
        told = await types_of(flow)
        assert (told.count("workflow_paused"), told.count("workflow_resumed")) == (1, 1)


async def test_a_cancelled_flow_ends_without_its_goals(engines: Engines) -> None:
    shop = Shop()
    shop.may_price.clear()
    async with engines.open(shop.registry) as env:
        flow = await env.engine.start_flow(["shipment"], GIVEN, id="f")
        await env.settle()
        await flow.cancel("enough")
        await env.settle()
        with pytest.raises(WorkflowCancelled, match=r"^flow 'shipment' \(f\) was cancelled$"):
            await env.finish(flow.result())
        assert (await flow.describe()).status is Status.CANCELLED
        with pytest.raises(NotFound, match=r"'f' is closed \(cancelled\) and accepts no more messages"):
            await flow.cancel()
        shop.may_price.set()
        await env.settle()
        assert shop.calls == ["order", "price"]
        assert (await flow.describe()).deactivated


async def test_a_terminated_flow_ends_at_once_and_says_why(engines: Engines) -> None:
    shop = Shop()
    shop.may_price.clear()
    async with engines.open(shop.registry) as env:
        flow = await env.engine.start_flow(["shipment"], GIVEN)
        await env.settle()
        await flow.terminate("enough")
        with pytest.raises(WorkflowTerminated, match=r"^flow 'shipment' \(.*\) was terminated: enough$"):
            await env.finish(flow.result())
        shop.may_price.set()
        await env.settle()
        assert (await flow.describe()).deactivated
        assert shop.calls == ["order", "price"]


async def test_lists_filter_flows_like_workflows(engines: Engines) -> None:
    shop = Shop()
    async with engines.open(shop.registry) as env:
        for number in (1, 2):
            flow = await env.engine.start_flow(
                ["order"], {"order_id": f"o-{number}"}, id=f"f-{number}", tags={"n": str(number)}
            )
            await env.finish(flow.result())
        assert await _listed(env, tags={"n": "1"}) == ["f-1"]
        assert sorted(await _listed(env, name="order", status="completed")) == ["f-1", "f-2"]
        assert await _listed(env, status="running") == []


async def test_a_flow_goes_on_in_the_store_that_it_is_imported_into(engines: Engines) -> None:
    """In the middle of a step: nothing that was done is done again, and the rest runs there."""
    shop = Shop()
    shop.may_price.clear()
    async with engines.open(shop.registry, grace=0) as env:
        flow = await env.engine.start_flow(["shipment"], GIVEN, id="f")
        await env.settle()
        lines = await env.engine.export("f")
        run_id = flow.run_id
    shop.calls.clear()
    shop.may_price.set()
    async with engines.open(shop.registry) as env:
        [arrival] = await env.engine.import_(lines)
        assert arrival.new
        flow = env.engine.handle("f")
        assert await env.finish(flow.result()) == RESULT
        assert (flow.run_id, shop.calls) == (run_id, ["price", "shipment"])


async def test_the_catalog_moves_with_an_export(engines: Engines) -> None:
    shop = Shop()
    async with engines.open(shop.registry) as env:
        lines = await env.engine.export("catalog")
    async with engines.client(Registry()) as (_, _, engine):
        await engine.import_(lines)
        assert [step.id for step in await engine.steps()] == ["order", "price", "shipment"]


async def test_ended_flows_are_purged_by_age_status_and_name(engines: Engines) -> None:
    """The catalog is never purged."""
    shop = Shop()
    shop.may_price.clear()
    async with engines.open(shop.registry) as env:
        ended = await env.engine.start_flow(["order"], GIVEN, id="ended")
        await env.finish(ended.result())
        await env.advance(timedelta(days=1))
        await env.engine.start_flow(["price"], GIVEN, id="open")
        assert await env.engine.purge(before=env.now(), name="price") == 0
        assert await env.engine.purge(before=env.now(), status="failed") == 0
        assert await env.engine.purge(before=env.now()) == 1
        assert await _listed(env) == ["open"]
        assert len(await env.engine.steps()) == 3
        again = await env.engine.start_flow(["order"], GIVEN, id="ended")
        assert again.run_id != ended.run_id
        shop.may_price.set()
        await env.settle()


async def test_steps_get_the_metadata_that_they_ask_for(engines: Engines) -> None:
    registry = Registry()

    @StepDecorator(registry)
    def whose(user: Annotated[str, Meta("user")], flow: Annotated[str, Meta("flow_id")]) -> str:
        return f"{user} in {flow}"

    async with engines.open(registry) as env:
        flow = await env.engine.start_flow(["whose"], id="f", metadata={"user": "Ada"})
        assert await env.finish(flow.result()) == {"whose": "Ada in f"}


async def test_a_move_takes_open_flows_and_the_catalog_along(engines: Engines) -> None:
    """The flow goes on in the target where it was, and steps are known there."""
    shop = Shop()
    shop.may_price.clear()
    clock = ManualClock()
    async with engines.open_store(clock) as source, engines.open_store(clock) as target:
        async with engines.serve(source, clock, shop.registry, grace=0) as env:
            await env.start_flow(["shipment"], GIVEN, id="f")
        moved = await Move(source, target, clock, url="target").run()
        assert (moved.workflows, moved.left) == (2, {})
        assert await source.inspector.get("catalog") is None
        shop.may_price.set()
        shop.calls.clear()
        async with engines.serve(target, clock, shop.registry) as env:
            assert await env.finish(env.handle("f").result()) == RESULT
            assert shop.calls == ["price", "shipment"]
            assert await env.finish((await env.start_flow(["order"], GIVEN)).result()) != {}


async def test_a_move_leaves_the_catalog_if_the_target_has_one(engines: Engines) -> None:
    """The worker of the target has registered its steps already; flows bring those that they need in their plans."""
    shop = Shop()
    shop.may_price.clear()
    clock = ManualClock()
    async with engines.open_store(clock) as source, engines.open_store(clock) as target:
        async with engines.serve(source, clock, shop.registry, grace=0) as env:
            await env.start_flow(["shipment"], GIVEN, id="f")
        async with engines.serve(target, clock, shop.registry) as env:
            before = await target.inspector.get("catalog")
            moved = await Move(source, target, clock, url="target").run()
            assert (moved.workflows, moved.left) == (1, {})
            assert await target.inspector.get("catalog") == before
            assert await source.inspector.get("catalog") is not None
            shop.may_price.set()
            assert await env.finish(env.handle("f").result()) == RESULT


async def test_messages_to_code_are_refused_by_flows_which_have_none(engines: Engines) -> None:
    shop = Shop()
    shop.may_price.clear()
    async with engines.open(shop.registry) as env:
        flow = await env.start_flow(["shipment"], GIVEN, id="f")
        for handle in (flow, env.handle("f")):
            with pytest.raises(
                StoreError, match="'f' is a flow, which takes no signals: only the code of a workflow does"
            ):
                await handle.signal("go")
            with pytest.raises(StoreError, match="'f' is a flow, which takes no queries"):
                await handle.query("total")
            with pytest.raises(StoreError, match="'f' is a flow, which takes no updates"):
                await handle.update("add")
        await slip_in(env, flow, "go", 1)  # as a workflow does
        shop.may_price.set()
        assert await env.finish(flow.result()) == RESULT
        assert "signal_received" not in await types_of(flow)


async def test_a_workflow_does_not_take_over_the_id_of_a_flow(engines: Engines) -> None:
    shop = Shop()
    shop.may_price.clear()

    @shop.registry.workflow
    async def work(ctx: Context) -> None: ...

    async with engines.open(shop.registry) as env:
        flow = await env.start_flow(["shipment"], GIVEN, id="f")
        belongs = r"id 'f' belongs to a flow, 'shipment' \(running\); choose another id"
        with pytest.raises(AlreadyExists, match="'f' is in use by an open execution of 'shipment'"):
            await env.engine.start(work, id="f")
        with pytest.raises(AlreadyExists, match=belongs):
            await env.engine.start(work, id="f", if_exists="attach")
        with pytest.raises(AlreadyExists, match=belongs):
            await env.engine.signal_with_start(work, id="f", signal="go")
        with pytest.raises(AlreadyExists, match=belongs):
            await env.engine.update_with_start(work, id="f", update="add")
        shop.may_price.set()
        assert await env.finish(flow.result()) == RESULT


async def test_a_worker_with_retention_removes_flows_that_ended_long_ago(engines: Engines) -> None:
    shop = Shop()
    async with engines.open(shop.registry, retain=timedelta(days=1)) as env:
        await env.finish((await env.start_flow(["order"], GIVEN, id="f")).result())
        await env.advance(timedelta(hours=12))
        assert await _listed(env) == ["f"]
        await env.advance(timedelta(days=2))
        assert await _listed(env) == []
        assert len(await env.engine.steps()) == 3


async def test_a_result_that_does_not_come_says_what_the_flow_waits_for(engines: Engines) -> None:
    shop = Shop()
    shop.may_price.clear()
    async with engines.open(shop.registry) as env:
        flow = await env.start_flow(["shipment"], GIVEN, id="f")
        with pytest.raises(
            ResultTimeout, match="no result of flow 'f' within 0: it is running and waits for step 'price'"
        ):
            await flow.result(timeout=0)
        shop.may_price.set()
        await env.settle()


async def test_mocked_steps_run_in_place_of_their_functions(engines: Engines) -> None:
    registry = Registry()

    @StepDecorator(registry)
    def charge() -> int:
        raise AssertionError("never called in a test")

    async with engines.open(registry) as env:
        env.mock(charge, returns=3)
        assert await env.finish((await env.start_flow([charge])).result()) == {"charge": 3}


async def _listed(env: Environment, **query: str | dict[str, str]) -> list[str]:
    page = await env.engine.list(**query)  # type: ignore[arg-type]
    return [found.entity_id for found in page.instances]
