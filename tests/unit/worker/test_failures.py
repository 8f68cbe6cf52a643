"""Failed runs are logged once, by the worker that recorded the failure."""

import logging
from datetime import timedelta

import pytest

from resurgam import Context, Registry, RetryPolicy, errors
from resurgam.testing import Environment

registry = Registry()


@registry.activity(retry=RetryPolicy(max_attempts=2, initial_interval=2, jitter=0))
async def refuses() -> None:
    raise LookupError("not there")


@registry.workflow
async def fails(ctx: Context) -> None:
    await ctx.activity(refuses)


@registry.workflow(retry=RetryPolicy(max_attempts=2, initial_interval=60, jitter=0))
async def tries(ctx: Context) -> None:
    raise ValueError("again")


@registry.workflow(timeout=60)
async def hangs(ctx: Context) -> None:
    await ctx.listen("never")


@registry.workflow
async def unwritable(ctx: Context) -> int:
    return "no number"  # type: ignore[return-value]


async def logged(caplog, workflow, cache=1000):
    """Run a workflow until it has failed; return what was logged of it."""
    async with Environment(registry=registry, cache_size=cache) as env:
        handle = await env.start(workflow, id="w-1")
        with pytest.raises(errors.WorkflowFailed):
            await env.finish(handle.result())
        # Neither a late look nor a second worker says it again.
        await env.advance(3600)
    return [
        (record.levelname, record.getMessage(), caplog.handler.format(record))
        for record in caplog.records
        if record.name == "resurgam.workflow"
    ]


@pytest.mark.parametrize("cache", [0, 1000], ids=["replayed", "cached"])
async def test_a_failed_run_is_one_error_with_its_traceback(caplog, cache):
    [(level, message, text)] = await logged(caplog, fails, cache)

    assert (level, message) == ("ERROR", "workflow 'fails' (w-1), attempt 1 failed")
    assert "await ctx.activity(refuses)" in text
    assert "LookupError: not there" in text


async def test_each_failed_attempt_of_a_workflow_is_logged_with_the_time_of_the_next(caplog):
    async with Environment(registry=registry) as env:
        begun = env.now()
    first, last = await logged(caplog, tries)

    following = (begun + timedelta(seconds=60)).isoformat(timespec="milliseconds")
    assert first[:2] == ("WARNING", f"workflow 'tries' (w-1), attempt 1 failed; next at {following}")
    assert last[:2] == ("ERROR", "workflow 'tries' (w-1), attempt 2 failed")
    assert all('raise ValueError("again")' in text for _, _, text in (first, last))


async def test_each_failed_attempt_of_an_activity_is_a_warning_with_the_time_of_the_next(caplog):
    async with Environment(registry=registry) as env:
        begun = env.now()
    await logged(caplog, fails)

    said = [record for record in caplog.records if record.name == "resurgam.activity"]
    following = (begun + timedelta(seconds=2)).isoformat(timespec="milliseconds")
    assert [record.getMessage() for record in said] == [
        f"activity 'refuses' of workflow w-1, attempt 1 failed; next at {following}",
        "activity 'refuses' of workflow w-1, attempt 2 failed; no further attempt",
    ]
    assert {record.levelno for record in said} == {logging.WARNING}
    assert all('raise LookupError("not there")' in caplog.handler.format(record) for record in said)


@pytest.mark.parametrize(
    ("workflow", "reason"), [(hangs, "did not end within its timeout of 60 s"), (unwritable, "SerializationError")]
)
async def test_a_failure_that_the_code_did_not_raise_is_logged_with_its_reason(caplog, workflow, reason):
    [(level, message, text)] = await logged(caplog, workflow)

    assert (level, message) == ("ERROR", f"workflow '{workflow.name}' (w-1), attempt 1 failed")
    assert reason in text


async def test_a_run_that_is_deleted_after_its_claim_is_dropped_without_a_word(caplog):
    """A worker has claimed it and finds no log; its lease is let go."""
    registry = Registry()

    @registry.workflow
    async def waits(ctx: Context) -> None:
        await ctx.listen("go")

    async with Environment(registry=registry, cache_size=0) as env:
        handle = await env.start(waits, id="w")
        await env.settle()
        store = env.engine.store
        read = store.read

        async def nothing(*_: object, **__: object) -> list[object]:
            return []

        store.read = nothing
        await handle.signal("look")
        await env.settle()
        store.read = read
        assert env.engine.busy == 0
    assert [record for record in caplog.records if record.levelname in ("ERROR", "WARNING")] == []
