"""Options of one run, by ``workflow.options(...)``: they are recorded and override the definition."""

import pytest

from resurgam import Context, Registry, RetryPolicy, errors, workflow
from resurgam.core.event import ChildScheduled, WorkflowStarted
from resurgam.testing import Environment, crash_everywhere

TWICE = RetryPolicy(max_attempts=2, initial_interval=1, jitter=0)
registry = Registry()


@registry.workflow(timeout=60)
async def flaky(ctx: Context, succeeds_at: int) -> int:
    if ctx.info.attempt < succeeds_at:
        raise ConnectionError("down")
    return ctx.info.attempt


@registry.workflow
async def again(ctx: Context, generation: int) -> int:
    if generation == 1:
        ctx.continue_as_new(2)
    if ctx.info.attempt == 1:
        raise ConnectionError("down")
    return ctx.info.generation


@registry.workflow
async def sleeper(ctx: Context, seconds: float) -> str:
    await ctx.sleep(seconds)
    return ctx.info.queue


@registry.workflow
async def parent(ctx: Context) -> list[object]:
    first = await ctx.workflow(flaky.options(retry=TWICE), 2)
    second = await ctx.workflow(workflow.ref("flaky", returns=int).options(retry=TWICE, queue="slow"), 2)
    try:
        await ctx.workflow(sleeper.options(timeout=5), 10)
    except errors.ChildWorkflowFailed as failed:
        return [first, second, type(failed.cause).__name__]
    return []


@registry.workflow
async def wrong(ctx: Context) -> None:
    await ctx.workflow(flaky, 1, timeout=5)  # type: ignore[call-overload]


@pytest.fixture
async def env():
    async with Environment(registry=registry, queues=["default", "slow"]) as env:
        yield env


async def test_a_worker_with_the_plain_definition_honours_the_retry_policy_of_a_run(env):
    with pytest.raises(errors.WorkflowFailed):
        await env.finish((await env.start(flaky, 2)).result())
    for meant in (flaky.options(retry=TWICE), workflow.ref("flaky").options(retry=TWICE)):
        assert await env.finish((await env.start(meant, 2)).result()) == 2
    with pytest.raises(errors.WorkflowFailed):
        await env.finish((await env.start(flaky.options(retry=TWICE), 3)).result())
    picky = flaky.options(retry=RetryPolicy(max_attempts=5, non_retryable=[ConnectionError]))
    with pytest.raises(errors.WorkflowFailed):
        await env.finish((await env.start(picky, 2)).result())


async def test_the_timeout_of_a_run_counts_over_its_attempts(env):
    handle = await env.start(flaky.options(timeout=2, retry=RetryPolicy(max_attempts=9, initial_interval=5)), 2)
    with pytest.raises(errors.WorkflowFailed) as failed:
        await env.finish(handle.result())
    assert isinstance(failed.value.cause, errors.WorkflowTimeout)
    longer = await env.start(sleeper.options(timeout=20), 10)
    assert await env.finish(longer.result()) == "default"


async def test_the_options_of_a_run_survive_continuations_and_manual_retries(env):
    handle = await env.start(again.options(retry=TWICE, timeout=600), 1)
    assert await env.finish(handle.result()) == 2
    failed = await env.start(flaky.options(timeout=30), 2)
    with pytest.raises(errors.WorkflowFailed):
        await env.finish(failed.result())
    await failed.retry()
    assert await env.finish(failed.result()) == 2
    for last, length in ((handle, 600_000), (failed, 30_000)):
        [started, *_] = await last.history()
        assert isinstance(started, WorkflowStarted)
        assert (started.attempt, started.timeout) == (2, length)


async def test_a_child_starts_with_the_options_of_its_call(env):
    handle = await env.start(parent)
    assert await env.finish(handle.result()) == [2, 2, "WorkflowTimeout"]
    calls = [entry for entry in await handle.history() if isinstance(entry, ChildScheduled)]
    assert [(call.queue, call.timeout) for call in calls] == [("default", None), ("slow", None), ("default", 5000)]
    assert [call.retry == TWICE.rule() for call in calls] == [True, True, False]


async def test_options_hold_wherever_a_run_is_killed():
    await crash_everywhere(parent, registry=registry)


async def test_options_return_a_copy_and_accumulate(env):
    copy = sleeper.options(queue="slow").options(timeout=5).options(retry=TWICE)
    assert (copy.queue, copy.overrides.timeout, copy.overrides.retry) == ("slow", 5000, TWICE.rule())
    assert (sleeper.queue, sleeper.overrides.timeout) == (None, None)
    assert await env.finish((await env.start(copy, 0)).result()) == "slow"
    assert await env.finish((await env.start(copy, 0, queue="default")).result()) == "default"
    signalled = await env.signal_with_start(copy, 0, id="s-1", signal="go")
    assert await env.finish(signalled.result()) == "slow"


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"matching": "sequence"}, errors.DefinitionError, r"got 'matching'; give that to @workflow\(\.\.\.\)"),
        ({"id": "o-1"}, errors.DefinitionError, "got 'id'; give that to the call that starts it"),
        ({"queue": ""}, errors.DefinitionError, "workflow 'flaky': queue must be a non-empty string, got ''"),
        ({"retry": 3}, errors.DefinitionError, "retry must be a RetryPolicy, got 3"),
        ({"timeout": 0}, ValueError, "timeout must be more than 0, got 0"),
    ],
)
def test_invalid_options_are_refused_with_a_remedy(options, error, text):
    with pytest.raises(error, match=text):
        flaky.options(**options)


async def test_an_option_of_the_workflow_given_to_a_start_is_refused_with_the_remedy(env):
    calls = [
        (env.engine.start(flaky, 1, timeout=5), r"write engine\.start\(flaky\.options\(timeout=\.\.\.\), \.\.\.\)"),
        (env.engine.execute("flaky", 1, retry=TWICE), r"engine\.execute\(workflow\.ref\('flaky'\)\.options\(retry="),
        (
            env.engine.update_with_start(flaky, 1, id="x", update="add", retry=TWICE),
            r"engine\.update_with_start\(flaky\.options\(retry=",
        ),
        (env.engine.signal_with_start(flaky, 1, id="x", signal="go", colour=1), "no option 'colour'; .* by position"),
    ]
    for call, text in calls:
        with pytest.raises(errors.DefinitionError, match=text):
            await call
    with pytest.raises(errors.WorkflowFailed, match=r"ctx\.workflow\(flaky\.options\(timeout=\.\.\.\), \.\.\.\)"):
        await env.engine.execute(wrong)
