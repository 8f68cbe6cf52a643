"""What a handle is made for: an entity, one run, one attempt; and the workflow that gives it its type."""

from dataclasses import dataclass

import pytest

from resurgam import Context, Registry, RetryPolicy, Status, errors, workflow
from resurgam.testing import Environment
from support.manual_worker import workerless_engine


@dataclass
class Receipt:
    order: str
    cents: int


registry = Registry()


@registry.workflow(retry=RetryPolicy(max_attempts=2, jitter=0))
async def second_time_lucky(ctx: Context, order: str) -> Receipt:
    ctx.set("attempt", ctx.info.attempt)
    if ctx.info.attempt == 1:
        raise ConnectionError("down")
    await ctx.workflow(part)
    return Receipt(order, 4200)


@registry.workflow
async def part(ctx: Context) -> int:
    return 1


@pytest.fixture
async def env():
    async with Environment(registry=registry) as env:
        yield env


async def test_a_handle_of_one_execution_reads_that_attempt(env):
    handle = await env.start(second_time_lucky, "o-1", id="o-1")
    first = handle.execution_id
    assert await env.finish(handle.result()) == Receipt("o-1", 4200)

    earlier = env.handle("o-1", execution_id=first)
    found = await earlier.describe()
    assert (earlier.execution_id, found.attempt, found.status) == (first, 1, Status.FAILED)
    assert await earlier.state("attempt") == 1
    assert (await earlier.history())[-2].type == "workflow_retried"
    with pytest.raises(errors.WorkflowFailed, match="down"):
        await earlier.result(0)
    later = env.handle("o-1", handle.run_id, execution_id=handle.execution_id)
    assert await later.result(0) == Receipt("o-1", 4200)


async def test_a_handle_of_one_execution_waits_for_its_own_end_only(env):
    handle = await env.start(second_time_lucky, "o-1", id="o-1", delay=60)
    first = env.handle("o-1", execution_id=handle.execution_id)
    with pytest.raises(errors.ResultTimeout, match="scheduled"):
        await first.result(0)
    with pytest.raises(errors.WorkflowFailed, match="down"):
        await env.finish(first.result())
    assert not (await handle.describe()).status.terminal  # the second attempt is still to come


async def test_an_execution_that_was_continued_says_where_the_result_is():
    async with workerless_engine() as (engine, worker):
        started = await engine.start("sell", id="o-1")
        first = engine.handle("o-1", execution_id=started.execution_id)
        await worker.continues("o-1", "run-two")
        await worker.completes("o-1", b"7")
        with pytest.raises(errors.NotFound, match="continued as new, in run 'run-two'"):
            await first.result(1)


async def test_an_execution_that_is_not_of_the_entity_is_not_found(env):
    handle = await env.start(part, id="one")
    await env.start(part, id="two")
    for wrong in (env.handle("two", execution_id=handle.execution_id), env.handle("one", execution_id="x")):
        with pytest.raises(errors.NotFound, match=r"there is no workflow with id '(one|two)' and execution '"):
            await wrong.describe()


async def test_a_handle_of_one_execution_refuses_what_concerns_the_run(env):
    handle = await env.start(part, id="one")
    one = env.handle("one", execution_id=handle.execution_id)
    orders = {
        "signal": lambda: one.signal("go"),
        "update": lambda: one.update("add", 1),
        "resolve": lambda: one.resolve("paid"),
        "reject": lambda: one.reject("paid", "no"),
        "cancel": one.cancel,
        "terminate": one.terminate,
        "pause": one.pause,
        "resume": one.resume,
        "begin": one.begin,
        "retry": one.retry,
        "compensate": lambda: one.compensate("{1}"),
    }
    for verb, order in orders.items():
        with pytest.raises(errors.StoreError, match=rf"handle\.{verb}: .* use engine\.handle\('one'\)"):
            await order()


async def test_a_handle_reads_the_result_as_the_workflow_it_is_given(env):
    await env.finish((await env.start(second_time_lucky, "o-1", id="o-1")).result())
    elsewhere = Environment(store=env.engine.store, registry=Registry(), clock=env.clock, worker=False)
    async with elsewhere:
        assert await elsewhere.handle("o-1").result() == {"order": "o-1", "cents": 4200}
        assert await elsewhere.handle("o-1", workflow="second_time_lucky").result() == {"order": "o-1", "cents": 4200}
        for meant in (second_time_lucky, workflow.ref("second_time_lucky", returns=Receipt)):
            assert await elsewhere.handle("o-1", workflow=meant).result() == Receipt("o-1", 4200)
        with pytest.raises(errors.SerializationError, match="result of workflow 'second_time_lucky'"):
            await elsewhere.handle("o-1", workflow=workflow.ref("second_time_lucky", returns=int)).result()
    assert await env.handle("o-1", workflow="second_time_lucky").result() == Receipt("o-1", 4200)


async def test_a_handle_with_a_workflow_refuses_the_id_of_another(env):
    await env.start(part, id="one", delay=60)
    typed = env.handle("one", workflow=second_time_lucky)
    for verb in (typed.result, typed.describe, typed.cancel, lambda: typed.signal("go")):
        with pytest.raises(errors.NotFound, match=r"no workflow 'second_time_lucky' with id 'one': .* to a 'part'"):
            await verb()
    with pytest.raises(errors.DefinitionError, match="is not a workflow"):
        env.handle("one", workflow=len)


async def test_the_tree_has_runs_executions_steps_and_children(env):
    handle = await env.start(second_time_lucky, "o-1", id="o-1")
    await env.finish(handle.result())

    tree = await handle.tree()
    [run] = tree.runs
    assert (tree.entity_id, tree.name, run.run_id) == ("o-1", "second_time_lucky", handle.run_id)
    assert [(one.attempt, one.status) for one in run.executions] == [(1, "failed"), (2, "completed")]
    [child] = run.children
    assert (child.workflow.name, child.location) == ("part", "{2}")
    first = env.handle("o-1", execution_id=run.executions[0].execution_id)
    assert await first.tree() == tree
