"""``ctx.flow`` in a history: it takes a place, both matchers know it, and changed code is found out."""

import asyncio
from typing import Any

import msgspec
import pytest

from resurgam import Context, Registry
from resurgam.core import event as events
from resurgam.core.errors import DefinitionError
from resurgam.core.flow_event import FlowRequest
from resurgam.core.location import Location
from resurgam.testing import replay
from resurgam.testing.simulation import start_event

MATCHERS = pytest.mark.parametrize("matching", ["location", "sequence"])


def workflow(code: Any, matching: str = "location") -> Any:
    """Return a workflow with this code."""
    return Registry().workflow(name="w", matching=matching)(code)


async def one_flow(ctx: Context) -> Any:
    return await ctx.flow(["ship", "bill"], {"order": 1})


def history(code: Any, *answers: events.Event, name: str = "bill,ship") -> list[events.Event]:
    """Return the history of a workflow that has started a flow, and has these answers to it."""
    call = events.FlowScheduled(
        seq=2,
        location=Location((1,)),
        command="Flow(0)",
        name=name,
        queue="default",
        entity_id="flow",
        run_id="flow-run",
    )
    log: list[events.Event] = [start_event(code, ()), call]
    for answer in answers:
        log.append(type(answer)(**{**fields(answer), "seq": len(log) + 1, "at": log[-1].at}))
    return log


def fields(event: events.Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in event.__struct_fields__}


DONE = events.FlowAnswered(ref=2, child="{1}", by="x", result=events.Raw(b'{"ship":"s","bill":2}'))
FAILURE = events.Failure(type="builtins.ValueError", message="no", args=events.Raw(b'["no"]'))


@MATCHERS
async def test_the_recorded_answer_is_the_result(matching: str) -> None:
    code = workflow(one_flow, matching)
    report = await replay(code, history(code, DONE))
    assert (report.diverged, report.result) == (None, {"ship": "s", "bill": 2})


@MATCHERS
async def test_the_order_of_goals_has_no_meaning(matching: str) -> None:
    async def reordered(ctx: Context) -> Any:
        return await ctx.flow({"bill", "ship"})

    code = workflow(reordered, matching)
    report = await replay(code, history(code, DONE))
    assert (report.diverged, report.result) == (None, {"ship": "s", "bill": 2})


@MATCHERS
async def test_a_failed_flow_raises_what_it_failed_with(matching: str) -> None:
    async def caught(ctx: Context) -> str:
        try:
            await ctx.flow(["ship", "bill"])
        except Exception as error:
            return f"{error}"
        return ""

    code = workflow(caught, matching)
    failed = events.FlowAnswered(ref=2, child="{1}", by="x", outcome="failed", failure=FAILURE)
    assert (await replay(code, history(code, failed))).result == (
        "child flow 'bill,ship' (flow) failed: ValueError: no"
    )
    cancelled = events.FlowAnswered(ref=2, child="{1}", by="x", outcome="cancelled")
    assert (await replay(code, history(code, cancelled))).result == "child flow 'bill,ship' (flow) was cancelled"


@MATCHERS
async def test_other_goals_are_a_divergence(matching: str) -> None:
    async def other(ctx: Context) -> Any:
        return await ctx.flow(["refund"])

    code = workflow(other, matching)
    diverged = (await replay(code, history(code, DONE))).diverged
    assert diverged is not None
    assert (diverged.code_value, diverged.history_value) == ("refund", "bill,ship")
    assert matching == "location" or "Flow goals mismatch at Flow(0): expected 'refund', got 'bill,ship'" in str(
        diverged
    )


@MATCHERS
async def test_another_id_is_a_divergence_by_sequence(matching: str) -> None:
    async def named(ctx: Context) -> Any:
        return await ctx.flow(["ship", "bill"], id="other")

    code = workflow(named, matching)
    diverged = (await replay(code, history(code, DONE))).diverged
    assert (diverged is not None) == (matching == "sequence")


@pytest.mark.parametrize("goals", [["ship", "bill"], "bill,ship"])
async def test_a_flow_that_was_removed_is_skipped_by_its_goals(goals: Any) -> None:
    async def without(ctx: Context) -> str:
        await ctx.removed.flow(goals)
        return "nothing"

    code = workflow(without)
    report = await replay(code, history(code, DONE))
    assert (report.diverged, report.result) == (None, "nothing")


async def test_a_flow_that_was_cancelled_before_it_began_is_cancelled_again() -> None:
    """The answer has no child; the code cancels it by itself, and nothing is delivered."""

    async def gives_up(ctx: Context) -> str:
        flow = ctx.flow(["ship", "bill"])
        flow.cancel()
        try:
            await flow
        except asyncio.CancelledError:
            return "given up"
        return ""

    code = workflow(gives_up)
    report = await replay(code, history(code, events.FlowAnswered(ref=2, outcome="cancelled")))
    assert (report.diverged, report.new, report.result) == (None, (), "given up")


async def test_the_input_of_a_flow_is_its_goals_and_what_it_is_given() -> None:
    async def starts(ctx: Context) -> None:
        ctx.flow(["b", "a"], {"x": [1], "w": {"k": "v"}}, metadata={"user": "u"})

    code = workflow(starts)
    report = await replay(code, [start_event(code, ())])
    [call] = [entry for entry in report.new if isinstance(entry, events.FlowScheduled)]
    request = msgspec.json.decode(call.input, type=FlowRequest)
    assert (call.name, request.goals) == ("a,b", ("a", "b"))
    assert {name: [msgspec.json.decode(one) for one in each] for name, each in request.init.items()} == {
        "w": [{"k": "v"}],
        "x": [[1]],
    }
    assert msgspec.json.decode(request.metadata["user"]) == "u"


@pytest.mark.parametrize(
    ("goals", "options", "message"),
    [
        ("ship", {}, "goals must be a list of steps or of their names, got 'ship'"),
        (7, {}, "goals must be a list of steps or of their names, got 7"),
        ([], {}, "a flow needs a goal"),
        ([""], {}, "a goal must be a step or the name of one, got ''"),
        ([print], {}, "a goal must be a step or the name of one, got <built-in function print>"),
        (["ship"], {"init": 5}, "init must be an object with names as keys, got 5"),
        (["ship"], {"init": {"": 5}}, "init must be an object with names as keys"),
        (["ship"], {"metadata": {1: 5}}, "metadata must be an object with names as keys"),
    ],
)
async def test_bad_arguments_are_one_clear_error(goals: Any, options: dict[str, Any], message: str) -> None:
    async def bad(ctx: Context) -> None:
        with pytest.raises(DefinitionError, match=f"ctx.flow: {message}"):
            ctx.flow(goals, **options)

    code = workflow(bad)
    assert (await replay(code, [start_event(code, ())])).error is None


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"id": ""}, ValueError),
        ({"queue": 3}, ValueError),
        ({"detach": 1}, TypeError),
        ({"on_parent_close": "x"}, ValueError),
    ],
)
async def test_bad_options_name_the_verb(options: dict[str, Any], kind: type[Exception]) -> None:
    async def bad(ctx: Context) -> None:
        with pytest.raises(kind, match=f"ctx.flow: {next(iter(options))}"):
            ctx.flow(["ship"], **options)

    code = workflow(bad)
    assert (await replay(code, [start_event(code, ())])).error is None
