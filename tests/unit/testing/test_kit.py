"""The test kit, used as a user would: virtual time, mocks, replay, crashes."""

import asyncio
import itertools
from datetime import timedelta

import pytest

from resurgam import Context, Registry, RetryPolicy, SignalTimeout
from resurgam.core import event as events
from resurgam.errors import WorkflowFailed
from resurgam.testing import Environment, ManualClock, crash_everywhere, replay

registry = Registry()


@registry.activity
async def charge(cents: int) -> str:
    raise RuntimeError("the real thing")


@registry.activity(timeout=30, retry=RetryPolicy(max_attempts=2, jitter=0))
async def hang() -> None:
    await asyncio.Event().wait()


@registry.workflow
async def checkout(ctx: Context, cents: int) -> str:
    receipt = await ctx.activity(charge, cents)
    await ctx.sleep(timedelta(days=1))
    try:
        approved = await ctx.listen("approve", type=bool, timeout=3600)
    except SignalTimeout:
        approved = False
    return receipt if approved else "refused"


@registry.workflow
async def hanging(ctx: Context) -> None:
    await ctx.activity(hang)


async def test_days_pass_in_no_time_and_the_activity_is_mocked():
    async with Environment(registry=registry) as env:
        env.mock(charge, returns="r-1")
        handle = await env.start(checkout, 100)
        begun = env.now()

        await env.advance(timedelta(days=2))

        assert await handle.result() == "refused"
        assert env.now() - begun == timedelta(days=2)


async def test_a_signal_sent_in_virtual_time_is_heard():
    async with Environment(registry=registry) as env:
        env.mock("charge", calls=lambda cents: f"paid {cents}")
        handle = await env.start(checkout, 100)
        await env.advance(timedelta(days=1))
        await handle.signal("approve", True)

        assert await env.finish(handle.result()) == "paid 100"


async def test_a_mock_can_raise():
    async with Environment(registry=registry) as env:
        env.mock(charge, raises=ValueError("declined"))
        handle = await env.start(checkout, 100)

        with pytest.raises(WorkflowFailed, match=r"charge.* failed after 5 attempts: ValueError: declined"):
            await env.finish(handle.result())


def test_a_mock_says_exactly_one_thing():
    env = Environment(registry=registry)

    with pytest.raises(ValueError, match="exactly one"):
        env.mock(charge)
    with pytest.raises(ValueError, match="exactly one"):
        env.mock(charge, returns=1, raises=ValueError())


async def test_mocks_do_not_leak_into_the_registry_they_came_from():
    async with Environment(registry=registry) as env:
        env.mock(charge, returns="r-1")

    assert registry.activities.find("charge") is charge


async def test_time_passes_an_activity_that_waits_for_ever():
    async with Environment(registry=registry, patience=0.01) as env:
        handle = await env.start(hanging)

        with pytest.raises(WorkflowFailed, match="ran longer than its timeout of 30 s"):
            await env.finish(handle.result())


async def test_a_machine_that_stands_still_between_two_looks_costs_an_activity_no_patience(monkeypatch):
    own, loop = Registry(), asyncio.get_running_loop()
    hours = itertools.count(loop.time(), 3600)

    @own.activity(timeout=30, retry=RetryPolicy(max_attempts=1))
    async def slow() -> str:
        for _ in range(100):
            await asyncio.sleep(0)
        return "done"

    @own.workflow
    async def waiting(ctx: Context) -> str:
        return await ctx.activity(slow)

    async with Environment(registry=own) as env:
        monkeypatch.setattr(loop, "time", lambda: next(hours))
        handle = await env.start(waiting)

        assert await env.finish(handle.result()) == "done"


async def test_waiting_for_what_nothing_can_bring_says_so():
    @registry.workflow
    async def silent(ctx: Context) -> None:
        await ctx.listen("never")

    async with Environment(registry=registry) as env:
        handle = await env.start(silent)

        with pytest.raises(TimeoutError, match="nothing is due that could produce it"):
            await env.finish(handle.result())


async def test_a_history_replays_from_events_and_from_text():
    async with Environment(registry=registry) as env:
        env.mock(charge, returns="r-1")
        handle = await env.start(checkout, 100)
        await env.advance(timedelta(days=2))
        history = await handle.history()
    text = "\n".join(event.to_json() for event in history)

    assert (await replay(checkout, history)).result == "refused"
    assert (await replay(checkout, text)).result == "refused"
    assert (await replay(checkout, text.splitlines()[:3])).new[0].type == "timer_started"


async def test_crash_everywhere_kills_after_every_event_and_finds_one_outcome():
    crashes = await crash_everywhere(checkout, 100, mocks={charge: "r-1"}, registry=registry)

    assert crashes.points == len(crashes.history) - 1
    assert [event.type for event in crashes.history][-2:] == ["workflow_completed", "workflow_deactivated"]


async def test_what_crash_everywhere_returns_prints_as_one_line():
    crashes = await crash_everywhere(checkout, 100, mocks={charge: "r-1"}, registry=registry)
    failing = await crash_everywhere(checkout, 1, mocks={"charge": ValueError("no")}, registry=registry)

    events = len(crashes.history)
    told = f"<Crashes: killed after each of {events - 1} events in 1 execution, always workflow_completed>"
    assert str(crashes) == repr(crashes) == told
    assert repr(failing).endswith("always workflow_failed>")


async def test_crash_everywhere_sends_messages_and_takes_failures():
    approve = events.SignalReceived(name="approve", id="1", value=b"true")
    with_signal = await crash_everywhere(checkout, 1, mocks={charge: "r"}, messages=[approve], registry=registry)
    failing = await crash_everywhere(checkout, 1, mocks={"charge": ValueError("no")}, registry=registry)

    assert "signals_consumed" in [event.type for event in with_signal.history]
    assert failing.history[-2].type == "workflow_failed"


async def test_crash_everywhere_kills_children_too_and_settles_promises():
    @registry.workflow
    async def paying(ctx: Context) -> str:
        await ctx.promise("paid", type=bool)
        return await ctx.activity(charge, 1)

    @registry.workflow
    async def shopping(ctx: Context) -> str:
        return await ctx.workflow(paying)

    crashes = await crash_everywhere(shopping, mocks={charge: "r"}, promises={"paid": True}, registry=registry)

    parent, child = crashes.histories.values()
    assert crashes.history == parent
    # The child's first entry is written with the call that begins it.
    assert crashes.points == len(parent) + len(child) - 2


async def test_crash_everywhere_finds_a_workflow_that_remembers_outside_of_its_history():
    """A variable that outlives the run is not replayed: the second run takes another path."""
    runs: list[int] = []

    @registry.workflow
    async def forgetful(ctx: Context) -> int:
        runs.append(1)
        if len(runs) > 2:
            await ctx.sleep(1)
        await ctx.activity(charge, 1)
        return 1

    with pytest.raises(AssertionError, match="killed after entry"):
        await crash_everywhere(forgetful, mocks={charge: "r"}, registry=registry)


def test_a_manual_clock_makes_due_calls_in_order_and_no_cancelled_ones():
    clock = ManualClock(0)
    calls: list[tuple[str, int]] = []
    clock.call_at(20, lambda: calls.append(("b", clock.now())))
    clock.call_at(10, lambda: calls.append(("a", clock.now())))
    clock.call_at(15, lambda: calls.append(("off", clock.now())))()

    clock.move_to(30)

    assert calls == [("a", 10), ("b", 20)]
    assert clock.now() == 30
    assert clock.next_due() is None


async def arrivals(seed: int | None) -> list[int]:
    """Return the order in which a workflow gets the results of three activities that run at the same time."""
    own, seen = Registry(), []

    @own.activity
    async def number(n: int) -> None:
        seen.append(n)

    @own.workflow
    async def gathering(ctx: Context) -> int:
        await asyncio.gather(*(ctx.activity(number, n) for n in range(3)))
        await ctx.activity(number, 3)
        return 4

    async with Environment(registry=own, seed=seed) as env:
        handle = await env.start(gathering)
        assert await env.finish(handle.result()) == 4
    return seen


async def test_a_seed_decides_which_activity_completes_first():
    orders = {tuple(await arrivals(seed)) for seed in range(20)}

    assert all(sorted(order[:3]) == [0, 1, 2] and order[3] == 3 for order in orders)
    assert len(orders) == 6
    assert await arrivals(7) == await arrivals(7)
    assert await arrivals(None) == [0, 1, 2, 3]


async def test_a_seed_orders_mocks_and_retries_too():
    own = Registry()

    @own.activity(retry=RetryPolicy(max_attempts=3, jitter=0))
    def shaky() -> str:
        raise ValueError("not yet")

    @own.workflow
    async def two(ctx: Context) -> list[str]:
        return list(await asyncio.gather(ctx.activity(shaky), ctx.activity(shaky)))

    for seed in range(3):
        calls = itertools.count()
        async with Environment(registry=own, seed=seed) as env:
            env.mock(shaky, calls=lambda calls=calls: "done" if next(calls) > 1 else shaky())
            handle = await env.start(two)
            assert await env.finish(handle.result()) == ["done", "done"]
