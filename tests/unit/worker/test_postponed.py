"""An activity of the engine says itself when it is run again, and what the next attempt must know."""

import logging

import msgspec
import pytest
from msgspec import Raw

from resurgam import Context, Registry, RetryPolicy
from resurgam.core import event as events
from resurgam.core.entry import Failure
from resurgam.core.errors import Postponed
from resurgam.testing import Environment
from support.engines import of_kind

WAITING = Failure(type="Acknowledged", message="accepted")


@pytest.mark.parametrize("options", [{}, {"timeout": 60}], ids=["watched by nothing", "within a timeout"])
async def test_an_attempt_that_is_postponed_runs_again_at_its_moment_whatever_its_policy(options, caplog):
    """It is no failure that is warned of, unless it says so."""
    caplog.set_level(logging.INFO, "resurgam.activity")
    registry, seen = Registry(), []

    @registry.activity(retry=RetryPolicy(max_attempts=1))
    async def wait() -> str:
        details = registry.activity.info().details
        seen.append((env.clock.now() - begun, details))
        if len(seen) < 3:
            known = Raw(msgspec.json.encode({"calls": len(seen)}))
            raise Postponed(env.clock.now() + 5000, WAITING, known, failed=len(seen) == 2)
        return "done"

    @registry.workflow
    async def waits(ctx: Context) -> str:
        return await ctx.activity(wait.options(**options))

    async with Environment(registry=registry) as env:
        begun = env.clock.now()
        handle = await env.start(waits, id="w")
        assert await env.finish(handle.result()) == "done"
        log = await handle.history()

    assert seen == [(0, None), (5000, {"calls": 1}), (10_000, {"calls": 2})]
    assert [one.failure for one in of_kind(log, events.ActivityRetryScheduled)] == [WAITING, WAITING]
    assert [(one.levelname, one.exc_info) for one in caplog.records] == [("INFO", None), ("WARNING", None)]
    assert "accepted" in caplog.records[0].getMessage()
