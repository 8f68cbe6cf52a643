"""A value that is written comes back as it was, with its types, live and cold; or it is refused where it is written."""

from collections import Counter
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laws.typed_values import HINTS, is_same, values_of
from resurgam import Context, Registry
from resurgam.core import event as events
from resurgam.core.codec import Codec
from resurgam.core.errors import SerializationError
from resurgam.testing import Simulation

CALM = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None, "derandomize": True}


def test_a_value_comes_back_as_it_was_or_is_refused():
    counted: Counter[str] = Counter()

    @settings(max_examples=1000, **CALM)
    @given(st.data())
    def law(data: Any) -> None:
        hint = data.draw(HINTS)
        codec: Codec[Any] = Codec(hint)
        value = data.draw(values_of(hint))
        try:
            written = codec.check(value)
        except SerializationError:
            counted["refused"] += 1
            return
        counted["written"] += 1
        back = codec.decode(written)
        assert is_same(value, back), f"{value!r} came back as {back!r}"
        assert bytes(codec.check(back)) == bytes(written)

    law()
    assert counted["written"] > 4 * counted["refused"] > 100, counted


def program_of(hint: Any, value: Any, seen: list[Any]) -> Registry:
    """Return a workflow that passes a value through an activity and its own state, and notes what it sees."""
    registry = Registry()

    async def echo(given: hint) -> hint:
        return given

    async def program(ctx: Context) -> hint:
        try:
            seen.append(await ctx.activity(activity, value))
        except SerializationError as error:
            seen.append(str(error))
            raise
        ctx.set("seen", 1)
        await ctx.sleep(1)
        return seen[-1]

    activity = registry.activity(echo)
    registry.workflow(program)
    return registry


@settings(max_examples=100, **CALM)
@given(st.data())
async def test_a_workflow_sees_the_same_value_live_and_cold(data):
    hint = data.draw(HINTS)
    value = data.draw(values_of(hint))
    live: list[Any] = []
    registry = program_of(hint, value, live)
    world = Simulation(registry.workflows.find("program"), registry=registry)
    log = await world.run()

    if isinstance(log[-2], events.WorkflowCompleted):
        assert is_same(live[-1], value)
    else:
        assert isinstance(live[-1], str)  # it was refused where it was passed
    for entry in log[1:-2]:
        cold: list[Any] = []
        again = program_of(hint, value, cold)
        resumed = Simulation(again.workflows.find("program"), log=world.as_of(entry.seq), registry=again)
        assert await resumed.run() == log
        assert is_same(cold[-1], live[-1])
