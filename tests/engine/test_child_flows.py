"""Flows in workflows, workflows in flows, and flows in flows: results, failures, ends and trees."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from resurgam.core import event as events
from resurgam.core import flow_event as fe
from resurgam.errors import ChildWorkflowCancelled, ChildWorkflowFailed, WorkflowFailed
from resurgam.flows import model as m
from resurgam.flows.steps import StepDecorator
from resurgam.runtime.context.context import Context
from resurgam.runtime.registry import Registry
from support.engines import TWICE, Engines, executions, types, types_of


def plain(inputs: Sequence[str], outputs: Sequence[str]) -> dict[str, m.Attribute]:
    """Return attributes without options."""
    return {**{name: m.Required(type="any") for name in inputs}, **{name: m.Output(type="any") for name in outputs}}


def flow_step(step_id: str, goals: Sequence[str], inputs: Sequence[str], outputs: Sequence[str]) -> m.Step:
    """Return a step that is a flow."""
    config = m.FlowConfig(goals=tuple(goals))
    return m.Step(id=step_id, name=step_id, type="flow", attributes=plain(inputs, outputs), flow=config)


def workflow_step(
    step_id: str, workflow: str, inputs: Sequence[str], outputs: Sequence[str], queue: str = ""
) -> m.Step:
    """Return a step that is a workflow whose result is an object."""
    config = m.WorkflowConfig(workflow=workflow, queue=queue)
    return m.Step(id=step_id, name=step_id, type="workflow", attributes=plain(inputs, outputs), workflow=config)


class Shop:
    """Steps that price and ship an order, a workflow that charges for it, and a workflow that awaits them all."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.calls: list[str] = []
        step = StepDecorator(self.registry)

        @step
        async def price(order: Any) -> Any:
            self.calls.append("price")
            return 7

        @step
        async def ship(receipt: Any) -> Any:
            self.calls.append("ship")
            return f"shipped by {receipt}"

        @self.registry.activity
        async def book(amount: int) -> str:
            self.calls.append("book")
            return f"receipt {amount}"

        @self.registry.workflow
        async def charge(ctx: Context, price: int) -> dict[str, str]:
            return {"receipt": await ctx.activity(book, price)}

        @self.registry.workflow
        async def sell(ctx: Context, order: str) -> str:
            result = await ctx.flow(["deliver"], {"order": order})
            return f"{order} {result['ship']}"

    @property
    def steps(self) -> list[m.Step]:
        """The steps that are no functions: a workflow, and a flow around it."""
        return [
            workflow_step("charge", "charge", ["price"], ["receipt"]),
            flow_step("deliver", ["ship"], ["order"], ["ship"]),
        ]


async def register(env: Any, steps: Sequence[m.Step]) -> None:
    """Register steps with the engine of an environment."""
    for one in steps:
        await env.finish(env.engine.register_step(one))


async def test_a_workflow_awaits_a_flow_of_a_flow_of_a_workflow(engines: Engines) -> None:
    """Each start and each end is an entry of the parent, and every child belongs to one tree."""
    shop = Shop()
    async with engines.open(shop.registry) as env:
        await register(env, shop.steps)
        handle = await env.start("sell", "o-1", id="sale")
        assert await env.finish(handle.result()) == "o-1 shipped by receipt 7"
        assert shop.calls == ["price", "book", "ship"]
        assert await types_of(handle) == [
            *("workflow_started", "flow_scheduled", "child_started", "flow_answered"),
            *("workflow_completed", "workflow_deactivated"),
        ]
        [outer] = await children(env, "sale")
        log = (await executions(env, outer))[-1].log
        assert types(log) == [
            *("flow_started", "flow_activated", "step_started", "work_started", "work_succeeded"),
            *("attribute_set", "step_completed", "flow_completed", "flow_digest_updated", "flow_deactivated"),
        ]
        assert isinstance(log[1], fe.FlowActivated)
        assert log[1].plan != events.NULL
        [inner] = await children(env, outer)
        [charged] = await children(env, inner)
        assert await env.engine.handle(charged).result() == {"receipt": "receipt 7"}
        trees = [(await env.engine.handle(one).describe()).tree_id for one in (outer, inner, charged)]
        assert trees == [(await handle.describe()).tree_id] * 3


async def children(env: Any, entity_id: str) -> list[str]:
    """Return the ids of the children of a workflow or a flow."""
    return [found.entity_id for found in (await env.engine.list(parent=entity_id, limit=100)).instances]


async def test_a_flow_that_cannot_be_planned_fails_with_that_error(engines: Engines) -> None:
    """A goal that is not registered, inputs that are not given."""
    shop = Shop()

    @shop.registry.workflow
    async def ask(ctx: Context, goal: str) -> str:
        try:
            await ctx.flow([goal])
        except ChildWorkflowFailed as failed:
            return f"{type(failed.cause).__name__}: {failed.cause}"
        return ""

    async with engines.open(shop.registry) as env:
        unknown = await env.finish((await env.start(ask, "nothing")).result())
        assert unknown.startswith("NotFound: there is no step 'nothing' in the catalog")
        missing = await env.finish((await env.start(ask, "price", id="asks")).result())
        assert missing.startswith("DefinitionError: required inputs not provided: order")
        [flow] = await children(env, "asks")
        kinds = ["flow_started", "flow_activated", "flow_failed", "flow_digest_updated", "flow_deactivated"]
        assert types((await executions(env, flow))[-1].log) == kinds


async def test_the_failure_of_a_step_reaches_the_workflow_through_all_flows(engines: Engines) -> None:
    """As the cause of `ChildWorkflowFailed`, with the message of the step that failed."""
    shop = Shop()

    @shop.registry.workflow(name="refuse")
    async def refuse(ctx: Context, price: int) -> None:
        raise ValueError("declined")

    async with engines.open(shop.registry) as env:
        deliver = flow_step("deliver", ["charge"], ["order"], ["receipt"])
        await register(env, [workflow_step("charge", "refuse", ["price"], ["receipt"]), deliver])
        handle = await env.start("sell", "o-1")
        with pytest.raises(WorkflowFailed, match="declined") as caught:
            await env.finish(handle.result())
        assert isinstance(caught.value.cause, ChildWorkflowFailed)


async def test_a_flow_step_without_the_outputs_that_it_declares_has_failed(engines: Engines) -> None:
    """The child has completed, but not with what the step promises."""
    shop = Shop()
    async with engines.open(shop.registry) as env:
        await register(env, [flow_step("deliver", ["price"], ["order"], ["ship"])])
        handle = await env.finish(env.engine.start_flow(["deliver"], {"order": 1}))
        with pytest.raises(WorkflowFailed, match="flow output missing: ship"):
            await env.finish(handle.result())


async def test_a_flow_keeps_the_steps_that_it_was_planned_with(engines: Engines) -> None:
    """Also those that only a flow within it will need, however the catalog changes."""
    shop = Shop()
    hold = asyncio.Event()
    step = StepDecorator(shop.registry)

    @step
    async def approve(order: Any) -> Any:
        await hold.wait()
        return True

    steps = [shop.steps[0], flow_step("deliver", ["ship"], ["order", "approve"], ["ship"])]
    async with engines.open(shop.registry) as env:
        await register(env, steps)
        handle = await env.finish(env.engine.start_flow(["deliver"], {"order": 1}))
        await env.settle()
        await env.finish(env.engine.remove_step("charge"))
        hold.set()
        assert await env.finish(handle.result()) == {"ship": "shipped by receipt 7"}


async def test_the_gates_of_a_child_flow_are_decided_on_real_values(engines: Engines) -> None:
    """A route whose match does not hold is not planned in the child; the other one is."""
    registry = Registry()
    step = StepDecorator(registry)
    ran: list[str] = []

    @step
    async def post(kind: Any) -> Any:
        ran.append("post")
        return "by post"

    @step
    async def mail(kind: Any) -> Any:
        ran.append("mail")
        return "by mail"

    send = flow_step("send", ["post", "mail"], ["kind"], ["sent"])
    async with engines.open(registry) as env:
        for one in (routed("post", "postal"), routed("mail", "email")):
            await env.finish(env.engine.update_step(one))
        await register(env, [send])
        handle = await env.finish(env.engine.start_flow(["send"], {"kind": "email"}))
        assert await env.finish(handle.result()) == {"sent": "by mail"}
        assert ran == ["mail"]


def routed(step_id: str, value: str) -> m.Step:
    """Return a step that runs only for one kind of input; its result is the output ``sent``."""
    gate = m.RequiredConfig(match=m.Expression(language="cel", script=f"value == '{value}'"))
    output = m.Output(type="any", output=m.OutputConfig(mapping=m.Mapping(name=step_id)))
    return m.Step(
        id=step_id,
        name=step_id,
        type="python",
        attributes={"kind": m.Required(type="any", required=gate), "sent": output},
        python=m.PythonConfig(activity=step_id, parameters=("kind",), fields=False),
    )


async def test_a_child_that_ends_while_its_flow_has_no_worker_is_not_lost(engines: Engines) -> None:
    """Its answer waits in the inbox of the flow."""
    shop = Shop()
    apart = Registry()
    apart.workflow(name="charge")(charge_alone)
    steps = [workflow_step("charge", "charge", ["price"], ["receipt"], queue="apart")]
    async with engines.client(Registry()) as (store, clock, client):
        async with engines.serve(store, clock, shop.registry) as env:
            await register(env, steps)
            handle = await env.finish(env.engine.start_flow(["ship"], {"order": 1}, id="flow"))
            await env.settle()
        [child] = [found.entity_id for found in (await client.list(parent="flow")).instances]
        async with engines.serve(store, clock, apart, queues=["apart"]) as other:
            assert await other.finish(client.handle(child).result()) == {"receipt": "alone"}
        assert "work_succeeded" in await types_of(client.handle("flow"))
        async with engines.serve(store, clock, shop.registry) as env:
            assert await env.finish(env.engine.handle(handle.entity_id).result()) == {"ship": "shipped by alone"}


async def charge_alone(ctx: Context, price: int) -> dict[str, str]:
    """Charge without any activity."""
    return {"receipt": "alone"}


class Waiting:
    """A workflow that awaits a flow whose only step is a workflow that waits for a signal."""

    def __init__(self, **options: Any) -> None:
        self.registry = Registry()
        self.ended: list[str] = []

        @self.registry.workflow
        async def listener(ctx: Context, order: Any) -> dict[str, Any]:
            try:
                return {"heard": await ctx.listen("go")}
            except asyncio.CancelledError:
                self.ended.append("cancelled")
                raise

        @self.registry.workflow
        async def waits(ctx: Context) -> Any:
            return await ctx.flow(["hear"], {"order": 1}, id="flow", **options)

        @self.registry.workflow
        async def leaves(ctx: Context) -> str:
            await ctx.flow(["hear"], {"order": 1}, id="flow", **options).started
            await ctx.sleep(60)
            return "left"

    steps = (workflow_step("hear", "listener", ["order"], ["heard"]),)


async def statuses(env: Any, *entity_ids: str) -> list[str]:
    """Return the statuses of workflows and flows."""
    return [str((await env.engine.handle(entity_id).describe()).status) for entity_id in entity_ids]


async def test_cancelling_a_workflow_cancels_the_flow_that_it_awaits_and_all_below(engines: Engines) -> None:
    """Each ends as cancelled, and the workflow only after the flow."""
    waiting = Waiting()
    async with engines.open(waiting.registry) as env:
        await register(env, waiting.steps)
        handle = await env.start("waits", id="root")
        [listener] = await children(env, "flow")
        await env.finish(handle.cancel())
        await env.settle()
        assert await statuses(env, "root", "flow", listener) == ["cancelled"] * 3
        assert waiting.ended == ["cancelled"]
        log = (await executions(env, "flow"))[-1].log
        assert types(log)[-4:] == ["flow_cancelled", "flow_digest_updated", "work_cancelled", "flow_deactivated"]


async def test_a_timeout_of_the_code_cancels_the_flow(engines: Engines) -> None:
    """The workflow goes on once the flow has ended."""
    waiting = Waiting()

    @waiting.registry.workflow
    async def impatient(ctx: Context) -> str:
        try:
            async with asyncio.timeout(60):
                await ctx.flow(["hear"], {"order": 1}, id="flow")
        except TimeoutError:
            return "too late"
        return ""

    async with engines.open(waiting.registry) as env:
        await register(env, waiting.steps)
        handle = await env.start(impatient)
        assert await env.finish(handle.result()) == "too late"
        await env.settle()
        assert await statuses(env, "flow") == ["cancelled"]


async def test_a_flow_cancelled_by_somebody_else_raises_so(engines: Engines) -> None:
    """As a child workflow does."""
    waiting = Waiting()

    @waiting.registry.workflow
    async def watches(ctx: Context) -> str:
        try:
            await ctx.flow(["hear"], {"order": 1}, id="flow")
        except ChildWorkflowCancelled as cancelled:
            return cancelled.entity_id
        return ""

    async with engines.open(waiting.registry) as env:
        await register(env, waiting.steps)
        handle = await env.start(watches)
        await env.finish(env.engine.handle("flow").cancel())
        assert await env.finish(handle.result()) == "flow"


async def test_a_flow_ends_with_its_parent_as_the_call_says(engines: Engines) -> None:
    """Cancelled by default, terminated or left alone on request; what is below a flow is cancelled with it."""
    for policy, flow, below in (
        (None, "cancelled", "cancelled"),
        ("terminate", "terminated", "cancelled"),
        ("abandon", "running", "running"),
    ):
        waiting = Waiting(on_parent_close=policy)
        async with engines.open(waiting.registry) as env:
            await register(env, waiting.steps)
            handle = await env.start("leaves")
            assert await env.finish(handle.result()) == "left"
            await env.settle()
            [listener] = await children(env, "flow")
            assert await statuses(env, "flow", listener) == [flow, below], policy


async def test_a_terminated_flow_fails_the_call_and_cancels_its_children(engines: Engines) -> None:
    """The workflow above gets the reason."""
    waiting = Waiting()
    async with engines.open(waiting.registry) as env:
        await register(env, waiting.steps)
        handle = await env.start("waits", id="root")
        [listener] = await children(env, "flow")
        await env.finish(env.engine.handle("flow").terminate(reason="enough"))
        with pytest.raises(
            WorkflowFailed, match=r"child flow 'hear' \(flow\) failed: .*flow .* was terminated: enough"
        ):
            await env.finish(handle.result())
        await env.settle()
        assert await statuses(env, "flow", listener) == ["terminated", "cancelled"]


async def test_a_tree_of_workflows_and_flows_is_paused_and_resumed_as_a_whole(engines: Engines) -> None:
    """A signal that comes meanwhile waits."""
    waiting = Waiting()
    async with engines.open(waiting.registry) as env:
        await register(env, waiting.steps)
        handle = await env.start("waits", id="root")
        [listener] = await children(env, "flow")
        await env.finish(handle.pause(tree=True))
        await env.finish(env.engine.handle(listener).signal("go", 5))
        await env.settle()
        assert await statuses(env, "root", "flow", listener) == ["paused"] * 3
        await env.finish(handle.resume())
        assert await env.finish(handle.result()) == {"heard": 5}


async def test_a_flow_whose_child_was_cancelled_by_somebody_else_fails(engines: Engines) -> None:
    """The step has no result, so its work item has failed."""
    waiting = Waiting()
    async with engines.open(waiting.registry) as env:
        await register(env, waiting.steps)
        handle = await env.finish(env.engine.start_flow(["hear"], {"order": 1}, id="flow"))
        await env.settle()
        [listener] = await children(env, "flow")
        await env.finish(env.engine.handle(listener).cancel())
        with pytest.raises(WorkflowFailed, match=r"child workflow .* was cancelled"):
            await env.finish(handle.result())


async def test_the_tree_of_a_workflow_shows_the_flows_below_it(engines: Engines) -> None:
    """With their steps, work items and children."""
    shop = Shop()
    async with engines.open(shop.registry) as env:
        await register(env, shop.steps)
        handle = await env.start("sell", "o-1", id="sale")
        await env.finish(handle.result())
        [run] = (await handle.tree()).runs
        [outer] = run.children
        assert (outer.workflow.kind, outer.workflow.name, outer.location) == ("flow", "deliver", "{1}")
        [flow] = outer.workflow.runs
        assert [(step.kind, step.name, step.status) for step in flow.steps] == [("flow_step", "deliver", "completed")]
        [inner] = flow.children
        steps = inner.workflow.runs[0].steps
        assert [step.name for step in steps] == ["charge", "price", "ship"]
        assert [[item.status for item in step.steps] for step in steps] == [[], ["succeeded"], ["succeeded"]]
        [charged] = inner.workflow.runs[0].children
        assert (charged.workflow.kind, charged.workflow.name) == ("workflow", "charge")


async def test_a_retried_workflow_takes_over_the_flow_of_the_attempt_before(engines: Engines) -> None:
    """It is not started twice, and its result is carried over once it is there."""
    shop = Shop()
    failed: list[int] = []

    @shop.registry.workflow(retry=TWICE)
    async def twice(ctx: Context) -> Any:
        result = await ctx.flow(["ship"], {"order": 1})
        await ctx.sleep(1)
        if ctx.info.attempt == 1:
            failed.append(1)
            raise ValueError("again")
        return result

    async with engines.open(shop.registry) as env:
        await register(env, shop.steps)
        handle = await env.start(twice, id="root")
        assert await env.finish(handle.result()) == {"ship": "shipped by receipt 7"}
        assert (failed, shop.calls) == ([1], ["price", "book", "ship"])
        assert len(await children(env, "root")) == 1


async def test_the_steps_of_a_flow_that_a_workflow_awaits_can_be_mocked(engines: Engines) -> None:
    """They are activities, so a test of the workflow replaces them as such."""
    shop = Shop()
    async with engines.open(shop.registry) as env:
        env.mock("price", returns=9)
        env.mock("ship", calls=lambda receipt: f"mocked after {receipt}")
        await register(env, shop.steps)
        handle = await env.start("sell", "o-1")
        assert await env.finish(handle.result()) == "o-1 mocked after receipt 9"
        assert shop.calls == ["book"]


async def test_a_child_is_kept_until_its_flow_is_complete(engines: Engines) -> None:
    """Then retention removes it with the others."""
    waiting = Waiting()
    done = workflow_step("done", "finished", ["order"], ["finished"])

    @waiting.registry.workflow
    async def finished(ctx: Context, order: Any) -> dict[str, Any]:
        return {"finished": 1}

    async with engines.open(waiting.registry) as env:
        await register(env, [*waiting.steps, done])
        handle = await env.finish(env.engine.start_flow(["hear", "done"], {"order": 1}, id="flow"))
        await env.advance(60)
        assert len(await children(env, "flow")) == 2
        assert await env.engine.purge(before=env.now()) == 0
        [listener] = [one for one in await children(env, "flow") if await statuses(env, one) == ["running"]]
        await env.finish(env.engine.handle(listener).signal("go", 1))
        assert await env.finish(handle.result()) == {"heard": 1, "finished": 1}
        await env.advance(60)
        assert await env.engine.purge(before=env.now()) == 3


async def test_a_detached_flow_goes_its_own_way(engines: Engines) -> None:
    """Awaiting it waits for its start; it has a tree of its own and outlives the workflow."""
    waiting = Waiting(detach=True)
    async with engines.open(waiting.registry) as env:
        await register(env, waiting.steps)
        handle = await env.start("waits", id="root")
        assert await env.finish(handle.result()) is None
        await env.settle()
        flow = await env.engine.handle("flow").describe()
        assert (str(flow.status), flow.tree_id == flow.run_id) == ("running", True)
        [listener] = await children(env, "flow")
        await env.finish(env.engine.handle(listener).signal("go", 3))
        assert await env.finish(env.engine.handle("flow").result()) == {"heard": 3}


async def test_a_flow_whose_id_is_in_use_fails_the_call(engines: Engines) -> None:
    """The flow that has the id goes on."""
    waiting = Waiting()
    async with engines.open(waiting.registry) as env:
        await register(env, waiting.steps)
        await env.finish(env.engine.start_flow(["hear"], {"order": 2}, id="flow"))
        handle = await env.start("waits", id="root")
        with pytest.raises(WorkflowFailed, match="flow id 'flow' is in use"):
            await env.finish(handle.result())
        assert await statuses(env, "flow") == ["running"]


async def test_a_workflow_step_may_be_retried_and_continue_as_new(engines: Engines) -> None:
    """The flow waits for the last execution of the last generation."""
    registry = Registry()

    @registry.workflow(retry=TWICE)
    async def stubborn(ctx: Context, order: Any, generation: int = 1) -> dict[str, Any]:
        if ctx.info.attempt == 1:
            raise ValueError("again")
        if generation == 1:
            ctx.continue_as_new(order, 2)
        return {"done": [order, generation, ctx.info.attempt]}

    async with engines.open(registry) as env:
        await register(env, [workflow_step("stubborn", "stubborn", ["order"], ["done"])])
        handle = await env.finish(env.engine.start_flow(["stubborn"], {"order": 5}))
        assert await env.finish(handle.result()) == {"done": [5, 2, 2]}


async def test_the_tree_of_a_flow_begins_with_the_flow(engines: Engines) -> None:
    """Its steps and its children are below it."""
    shop = Shop()
    async with engines.open(shop.registry) as env:
        await register(env, shop.steps)
        handle = await env.finish(env.engine.start_flow(["ship"], {"order": 1}))
        await env.finish(handle.result())
        tree = await handle.tree()
        assert (tree.kind, tree.name) == ("flow", "ship")
        assert [step.name for step in tree.runs[0].steps] == ["charge", "price", "ship"]
        assert [child.workflow.name for child in tree.runs[0].children] == ["charge"]


async def test_a_paused_child_of_a_cancelled_flow_is_resumed_to_stop(engines: Engines) -> None:
    """Else it would never hear of it."""
    waiting = Waiting()
    async with engines.open(waiting.registry) as env:
        await register(env, waiting.steps)
        await env.finish(env.engine.start_flow(["hear"], {"order": 1}, id="flow"))
        await env.settle()
        [listener] = await children(env, "flow")
        await env.finish(env.engine.handle(listener).pause())
        await env.finish(env.engine.handle("flow").cancel())
        await env.settle()
        assert await statuses(env, "flow", listener) == ["cancelled", "cancelled"]
