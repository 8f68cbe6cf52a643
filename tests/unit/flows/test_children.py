"""Steps that are flows and workflows: what they are started with, what their answers mean, and who is cancelled."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from resurgam.core import event as events
from resurgam.core import flow_event as fe
from resurgam.core import lifecycle
from resurgam.core.state import Status
from resurgam.flows import model as m
from resurgam.flows.state import FlowInput, FlowState
from resurgam.runtime.context.context import Context
from support.engines import Engines
from support.flow_worlds import FlowWorld, flow_world, result_of
from support.stores import STORES

ANY = m.Required(type="any")


def child_step(step_id: str, inputs: dict[str, m.Attribute], *outputs: str, **config: Any) -> m.Step:
    kind = "flow" if "flow" in config else "workflow"
    attributes = inputs | {name: m.Output(type="any") for name in outputs}
    return m.Step(id=step_id, name=step_id, type=kind, attributes=attributes, **config)


def goals(*names: str) -> m.FlowConfig:
    return m.FlowConfig(goals=names)


@pytest.fixture
async def world() -> AsyncIterator[FlowWorld]:
    async with flow_world(Engines(STORES["memory"], 0)) as world:
        yield world


async def children(world: FlowWorld, entity_id: str = "flow") -> list[Any]:
    page = await world.store.inspector.list(world.children_of(entity_id))
    return sorted(page.instances, key=lambda one: one.entity_id)


async def started_with(world: FlowWorld, child: Any) -> Any:
    [first, *_] = await world.store.read(child)
    return first


async def test_a_workflow_gets_its_inputs_as_arguments_by_name(world: FlowWorld) -> None:
    """And its result is that of the work item; without fields it is one output, named after the step."""

    @world.registry.workflow
    async def add(ctx: Context, first: int, second: int = 5) -> int:
        return first - second

    attributes = {"second": ANY, "first": ANY}
    step = child_step("add", attributes, "add", workflow=m.WorkflowConfig(workflow="add", fields=False))
    world.steps.append(step)
    async with world.worker():
        await world.start(["add"], {"first": 1, "second": 2})
        assert result_of(await world.ended()) == {"add": -1}


async def test_the_child_of_an_item_has_its_id_and_knows_its_flow(world: FlowWorld) -> None:
    """Metadata goes on to a flow, with the place that it has in its parent; meta inputs are passed."""
    world.steps += [
        child_step(
            "outer",
            {"order": ANY, "who": m.Meta(type="any", meta=m.MetaConfig(key="user"))},
            "inner",
            flow=goals("inner"),
        ),
    ]

    @world.step(name="inner")
    async def inner(order: Any, who: Any) -> Any:
        return [order, who]

    async with world.worker():
        await world.start(["outer"], {"order": 1}, metadata={"user": "u"})
        assert result_of(await world.ended()) == {"inner": [1, "u"]}
        [child] = await children(world)
        assert (child.entity_id, child.tree_id, child.kind) == ("flow-run/1", "flow-run", "flow")
        first = await started_with(world, child)
        given = msgspec.json.decode(first.input, type=FlowInput)
        assert {name: msgspec.json.decode(value) for name, value in given.metadata.items()} == {
            "user": "u",
            "parent_flow_id": "flow",
            "parent_step_id": "outer",
            "parent_work_item_token": "flow-run/1",
        }


async def test_each_element_is_a_child_of_its_own(world: FlowWorld) -> None:
    """The outputs are a list in the order of the input."""
    each = m.Required(type="any", required=m.RequiredConfig(for_each=True))
    world.steps.append(child_step("all", {"number": each}, "double", flow=goals("double")))

    @world.step(name="double")
    async def double(number: Any) -> Any:
        return 2 * number

    async with world.worker():
        await world.start(["all"], {"number": [3, 1, 2]})
        assert result_of(await world.ended()) == {
            "double": [{"number": 3, "double": 6}, {"number": 1, "double": 2}, {"number": 2, "double": 4}]
        }
        assert len(await children(world)) == 3


async def test_an_output_may_come_from_any_attribute_of_the_child(world: FlowWorld) -> None:
    renamed = m.Output(type="any", output=m.OutputConfig(mapping=m.Mapping(name="middle")))
    step = child_step("outer", {"order": ANY}, flow=goals("last"))
    world.steps.append(msgspec.structs.replace(step, attributes={**step.attributes, "found": renamed}))

    @world.step(name="middle")
    async def middle(order: Any) -> Any:
        return f"middle {order}"

    @world.step(name="last")
    async def last(middle: Any) -> Any:
        return 1

    async with world.worker():
        await world.start(["outer"], {"order": 1})
        assert result_of(await world.ended()) == {"found": "middle 1"}


async def test_an_output_that_the_child_has_not_provided_fails_the_item(world: FlowWorld) -> None:
    world.steps.append(child_step("outer", {"order": ANY}, "nowhere", flow=goals("inner")))

    @world.step(name="inner")
    async def inner(order: Any) -> Any:
        return 1

    async with world.worker():
        await world.start(["outer"], {"order": 1})
        state = await world.ended()
        assert state.failure is not None
        assert "flow output missing: nowhere" in state.failure.message
        [child] = await children(world)
        assert child.status is Status.COMPLETED


async def test_a_child_whose_inputs_do_not_suffice_fails_its_item_and_is_not_started(world: FlowWorld) -> None:
    optional = m.Optional(type="any")
    world.steps.append(child_step("outer", {"order": optional}, "inner", flow=goals("inner")))

    @world.step(name="inner")
    async def inner(order: Any) -> Any:
        return 1

    async with world.worker():
        await world.start(["outer"])
        state = await world.ended()
        assert state.failure is not None
        assert "required inputs not provided: order" in state.failure.message
        assert await children(world) == []


async def test_a_flow_step_that_its_values_lead_back_into_itself_fails_its_item(world: FlowWorld) -> None:
    """With an optional input that is there the child needs the step again: a clear error, and no endless tree."""
    world.steps += [
        child_step("outer", {"key": m.Optional(type="any")}, "made", flow=goals("goal")),
        child_step("locked", {"key": ANY}, "part", flow=goals("outer")),
    ]
    world.steps.append(
        m.Step(
            id="goal",
            name="goal",
            type="python",
            attributes={"part": m.Optional(type="any"), "made": m.Output(type="any")},
            python=m.PythonConfig(activity="goal"),
        )
    )

    async with world.worker():
        await world.start(["outer"], {"key": 1})
        state = await world.ended()
        assert state.failure is not None
        assert "flow step 'outer' contains itself: outer -> locked -> outer" in state.failure.message


class Held:
    """A flow of two workflows that wait for a signal, one beside a function that fails on demand."""

    def __init__(self, world: FlowWorld) -> None:
        self.world = world
        each = m.Required(type="any", required=m.RequiredConfig(for_each=True))
        wide = m.WorkConfig(parallelism=5)
        step = child_step("hear", {"each": each}, "heard", workflow=m.WorkflowConfig(workflow="listener"))
        world.steps.append(msgspec.structs.replace(step, work_config=wide))

        @world.registry.workflow
        async def listener(ctx: Context, each: Any) -> dict[str, Any]:
            heard = await ctx.listen("go")
            if heard == "fail":
                raise ValueError("failed")
            return {"heard": heard}

    async def signal(self, entity_id: str, value: bytes) -> None:
        await self.world.send(events.SignalReceived(name="go", id="1", value=events.Raw(value)), entity_id)


async def test_the_children_of_a_flow_that_has_failed_are_cancelled(world: FlowWorld) -> None:
    """The flow does not wait for their ends, which their own logs tell."""
    held = Held(world)
    async with world.worker() as worker:
        await world.start(["hear"], {"each": [1, 2, 3]})
        await world.settle(worker)
        await held.signal("flow-run/2", b'"fail"')
        state = await world.ended()
        assert [item.status for item in state.items.values()] == ["cancelled", "failed", "cancelled"]
        await world.until(Status.CANCELLED, "flow-run/3")
        assert [one.status for one in await children(world)] == [Status.CANCELLED, Status.FAILED, Status.CANCELLED]
        types = await world.types()
        assert types.index("flow_failed") < types.index("work_cancelled") < types.index("flow_deactivated")


async def test_the_other_children_of_a_step_that_has_failed_are_cancelled_while_the_flow_goes_on(
    world: FlowWorld,
) -> None:
    """The flow waits for their ends, and records them."""
    held = Held(world)
    step = child_step("last", {"order": ANY}, "said", workflow=m.WorkflowConfig(workflow="listener2"))
    world.steps.append(
        msgspec.structs.replace(step, attributes={**step.attributes, "heard": m.Optional(type="any", optional=LATE)})
    )

    @world.registry.workflow(name="listener2")
    async def listener2(ctx: Context, order: Any, heard: Any = None) -> dict[str, Any]:
        return {"said": await ctx.listen("go")}

    async with world.worker() as worker:
        await world.start(["last"], {"each": [1, 2], "order": 1})
        await world.settle(worker)
        await held.signal("flow-run/2", b'"fail"')
        await world.until(Status.CANCELLED, "flow-run/1")
        await world.settle(worker)
        assert (await world.types()).count("work_cancelled") == 1
        assert (await world.instance()).status is Status.RUNNING
        await held.signal("flow-run/3", b"8")
        assert result_of(await world.ended()) == {"said": 8}


LATE = m.OptionalConfig(deadline=60_000)


async def test_a_terminated_flow_cancels_its_children(world: FlowWorld) -> None:
    Held(world)
    async with world.worker() as worker:
        await world.start(["hear"], {"each": [1, 2]})
        await world.settle(worker)
        await world.send(lifecycle.WorkflowTerminated(reason="enough"))
        state = await world.ended()
        assert state.status == "terminated"
        await world.until(Status.CANCELLED, "flow-run/2")
        assert [one.status for one in await children(world)] == [Status.CANCELLED] * 2


async def test_an_answer_of_a_child_counts_once(world: FlowWorld) -> None:
    """The second one leads to nothing, as one does that is for another execution of the flow."""
    Held(world)
    async with world.worker() as worker:
        await world.start(["hear"], {"each": [1]})
        await world.settle(worker)
        result = events.Raw(b'{"heard":1}')
        other = events.ChildCompleted(ref=0, child="{1}", by="another", result=events.Raw(b'{"heard":2}'))
        await world.send(other)
        await world.send(events.ChildCompleted(ref=0, child="{1}", by="flow-execution", result=result))
        await world.send(events.ChildCompleted(ref=0, child="{1}", by="flow-execution", result=result))
        await world.until(Status.COMPLETED)
        state = FlowState(await world.log())
        assert result_of(state) == {"heard": [{"each": 1, "heard": 1}]}
        assert (await world.types()).count("work_succeeded") == 1


async def test_a_flow_without_a_plan_is_planned_when_it_begins(world: FlowWorld) -> None:
    """By the worker, from the catalog; the plan is in the entry that activates it."""

    @world.step(name="inner")
    async def inner(order: Any) -> Any:
        return order

    @world.registry.workflow
    async def parent(ctx: Context) -> Any:
        return await ctx.flow(["inner"], {"order": 4}, id="flow")

    started = events.WorkflowStarted(
        seq=1,
        at=world.clock.now(),
        name="parent",
        queue="default",
        entity_id="p",
        execution_id="p-execution",
        run_id="p-run",
        tree_id="p-run",
        python="3.11",
        input=events.Raw(b"[]"),
    )
    async with world.worker():
        await world.create(started)
        await world.until(Status.COMPLETED, "p")
        log = await world.log("p")
        [ended] = [entry for entry in log if isinstance(entry, events.WorkflowCompleted)]
        assert msgspec.json.decode(ended.result) == {"inner": 4}
        [flow] = await children(world, "p")
        entries = await world.store.read(flow)
        assert isinstance(entries[1], fe.FlowActivated)
        assert msgspec.json.decode(entries[1].plan)["goals"] == ["inner"]
        assert list(FlowState(entries[:2]).steps) == ["inner"]
        assert list(FlowState(entries[:1]).steps) == []
