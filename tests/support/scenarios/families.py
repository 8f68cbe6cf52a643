"""Scenarios of several workflows: children, messages between workflows, sagas, and successors of an execution."""

import asyncio
from typing import Any

from resurgam import Context, Engine, RetryPolicy
from resurgam.errors import ActivityFailed, ChildWorkflowCancelled, ChildWorkflowFailed, SignalFailed
from support.faults import World, did, operated
from support.scenarios.table import MINUTE, ONCE, activity, scenario, workflow
from support.scenarios.verbs import fail, note

AGAIN = RetryPolicy(max_attempts=3, initial_interval=MINUTE, jitter=0)


# Children.


@workflow
async def kid(ctx: Context, word: str) -> str:
    return await ctx.activity(note, word)


@workflow
async def bad_kid(ctx: Context) -> None:
    await ctx.activity(note, "bad")
    raise ValueError("bad")


@workflow
async def careful(ctx: Context, word: str) -> str:
    """Clean up if it is called off, which takes its time."""
    try:
        await ctx.listen("go")
    except asyncio.CancelledError:
        await ctx.activity(note, f"{word} stops")
        await ctx.sleep(MINUTE)
        await ctx.activity(note, f"{word} has stopped")
        raise
    return word


@workflow
async def family(ctx: Context) -> list[Any]:
    told: list[Any] = [await ctx.workflow(kid, "a")]
    try:
        await ctx.workflow(bad_kid)
    except ChildWorkflowFailed as failed:
        told.append(str(failed.cause))
    slow = ctx.workflow(careful, "slow")
    await slow.started
    await ctx.sleep(MINUTE)
    slow.cancel()
    try:
        await slow
    except asyncio.CancelledError:
        told.append("cancelled")
    return [*told, *await asyncio.gather(*(ctx.workflow(kid, word) for word in "xy"))]


@scenario(
    {
        "f 1": 'completed ["a","bad","cancelled","x","y"]',
        "f run 1>/1 1": 'completed "a"',
        "f run 1>/2 1": "workflow_failed builtins.ValueError: bad ()",
        "f run 1>/3 1": "workflow_cancelled ",
        "f run 1>/5 1": 'completed "x"',
        "f run 1>/6 1": 'completed "y"',
    }
)
async def children(world: World) -> None:
    await world.start(family, id="f")


@workflow
async def lets_go(ctx: Context) -> list[Any]:
    await ctx.workflow(kid, "d", id="free", detach=True)
    later = ctx.workflow(kid, "l", id="later", deferred=True)
    await ctx.activity(note, "before")
    return [await later]


@scenario({"p 1": 'completed ["l"]', "free 1": 'completed "d"', "later 1": 'completed "l"'})
async def detached_and_deferred(world: World) -> None:
    await world.start(lets_go, id="p")
    await world.advance(MINUTE)
    await world.tell("later", "begin")


@workflow
async def sends_away(ctx: Context) -> list[str]:
    first = await ctx.workflow(kid, "a", queue="other", id="k")
    return [first, await ctx.activity(note.options(queue="other"), "b"), await ctx.activity(note, "c")]


@scenario({"s 1": 'completed ["a","b","c"]', "k 1": 'completed "a"'}, places=(("default",), ("other",)))
async def another_queue(world: World) -> None:
    await world.start(sends_away, id="s")


@workflow
async def counter(ctx: Context, number: int) -> int:
    await ctx.activity(note, f"{number}")
    if number < 3:
        ctx.continue_as_new(number + 1)
    return number


@workflow
async def counts(ctx: Context) -> int:
    return await ctx.workflow(counter, 1, id="k")


@scenario(
    {
        "c 1": "completed 3",
        "k 1": "workflow_continued ",
        "k 2": "workflow_continued ",
        "k 3": "completed 3",
    }
)
async def a_child_that_continues(world: World) -> None:
    await world.start(counts, id="c")


@workflow
async def leaves(ctx: Context) -> str:
    for policy in ("cancel", "terminate", "abandon"):
        await ctx.workflow(careful, policy, id=policy, on_parent_close=policy).started  # type: ignore[arg-type]
    await ctx.listen("leave")
    return "left"


CLOSED = {
    "cancel 1": "workflow_cancelled ",
    "terminate 1": "workflow_terminated its parent p has ended",
    "abandon 1": 'completed "abandon"',
}


@scenario({"p 1": 'completed "left"', **CLOSED})
async def what_becomes_of_children(world: World) -> None:
    await world.start(leaves, id="p")
    await world.signal("p", "leave", None)
    await world.advance(5 * MINUTE)
    await world.signal("abandon", "go", None)


@scenario({"p 1": "workflow_terminated enough", **CLOSED})
async def a_parent_is_terminated(world: World) -> None:
    await world.start(leaves, id="p")
    await world.tell("p", "terminate", "enough")
    await world.advance(5 * MINUTE)
    await world.signal("abandon", "go", None)


@workflow
async def hears_two(ctx: Context) -> list[int]:
    return [await ctx.listen("n", type=int), await ctx.listen("n", type=int)]


@workflow
async def talks(ctx: Context) -> list[Any]:
    child = ctx.workflow(hears_two, id="k")
    await child.signal("n", 1)
    await ctx.activity(note, "between")
    await ctx.signal("k", "n", 2)
    heard = await child
    try:
        await ctx.signal("k", "n", 3)
    except SignalFailed as failed:
        heard.append(type(failed).__name__)
    return heard


@scenario({"t 1": 'completed [1,2,"SignalFailed"]', "k 1": "completed [1,2]"})
async def signals_to_a_child(world: World) -> None:
    await world.start(talks, id="t")


@workflow
async def head(ctx: Context) -> list[str]:
    try:
        return [await ctx.workflow(middle, id="middle")]
    except asyncio.CancelledError:
        await ctx.activity(note, "head stops")
        raise


@workflow
async def middle(ctx: Context) -> str:
    try:
        return await ctx.workflow(careful, "leaf", id="leaf")
    except ChildWorkflowCancelled:
        return "never"
    finally:
        await ctx.activity(note, "middle stops")


ALL_CANCELLED = dict.fromkeys(("head 1", "middle 1", "leaf 1"), "workflow_cancelled ")


@scenario(ALL_CANCELLED)
async def a_tree_is_cancelled(world: World) -> None:
    await world.start(head, id="head")
    await world.cancel("head")


@scenario({"head 1": 'completed ["leaf"]', "middle 1": 'completed "leaf"', "leaf 1": 'completed "leaf"'})
async def a_tree_is_paused(world: World) -> None:
    await world.start(head, id="head")
    await world.tell("head", "pause", tree=True)
    await world.advance(MINUTE)
    await world.signal("leaf", "go", None)
    await world.advance(MINUTE)
    statuses = {one.status for one in await world.instances()}
    assert statuses == {"paused"}
    await world.tell("head", "resume")


@workflow
async def patient(ctx: Context) -> list[Any]:
    first = await ctx.activity(note, "a")
    await ctx.sleep(MINUTE)
    return [first, await ctx.listen("go"), await ctx.activity(note, "b")]


@scenario({"p 1": 'completed ["a",1,"b"]'})
async def one_is_paused(world: World) -> None:
    await world.start(patient, id="p")
    await world.tell("p", "pause")
    await world.signal("p", "go", 1)
    await world.advance(5 * MINUTE)
    await world.tell("p", "resume")


# Sagas.


@activity(retry=ONCE)
async def undo(word: str | None) -> None:
    did()


@activity(retry=RetryPolicy(max_attempts=2, initial_interval=MINUTE, jitter=0))
async def undo_in_vain(word: str | None) -> None:
    did()
    raise ValueError("in vain")


@workflow
async def trip(ctx: Context, last: str, undoing: str) -> list[str]:
    taking_back = undo_in_vain if undoing == "in vain" else undo
    async with ctx.saga() as saga:
        booked = [await saga.step(note, "hotel", undo=undo), await saga.step(note, "flight", undo=taking_back)]
        if last == "wait":
            await ctx.listen("go")
        booked.append(await saga.step(note if last == "ok" else fail, last, undo=undo, undo_on_unknown=True))
    return [*booked, await ctx.activity(note, "sent")]


@scenario({"t 1": 'completed ["hotel","flight","ok","sent"]'})
async def a_saga(world: World) -> None:
    await world.start(trip, "ok", "easily", id="t")


FAILED = (
    "workflow_failed resurgam.core.errors.ActivityFailed: activity 'fail' failed after 1 attempt: NonRetryable: full"
)


@scenario({"t 1": f"{FAILED} () <- resurgam.core.errors.NonRetryable: full ()"})
async def a_saga_that_fails(world: World) -> None:
    await world.start(trip, "full", "easily", id="t")


@scenario(
    {
        "t 1": f"{FAILED} (\"step 'note' at {{2}} was not compensated: activity 'undo_in_vain' failed after 2 attempts: "
        'ValueError: in vain",) <- resurgam.core.errors.NonRetryable: full ()'
    }
)
async def a_saga_that_cannot_be_taken_back(world: World) -> None:
    await world.start(trip, "full", "in vain", id="t")


@scenario({"t 1": "workflow_cancelled "})
async def a_saga_is_cancelled(world: World) -> None:
    await world.start(trip, "wait", "easily", id="t")
    await world.cancel("t")


@workflow
async def nested(ctx: Context) -> list[str]:
    told = []
    try:
        async with ctx.saga() as outer:
            await outer.step(note, "a", undo=undo)
            async with ctx.saga() as inner:
                await inner.step(note, "b", undo=undo)
            try:
                async with ctx.saga() as third:
                    await third.step(note, "c", undo=undo)
                    raise ValueError("inner")
            except ValueError as error:
                told.append(str(error))
            await outer.step(fail, "outer", undo=undo)
    except ActivityFailed:
        told.append(await ctx.activity(note, "taken back"))
    return told


@scenario({"n 1": 'completed ["inner","taken back"]'})
async def nested_sagas(world: World) -> None:
    await world.start(nested, id="n")


# What follows an execution.


@workflow
async def relay(ctx: Context, heard: list[int]) -> list[int]:
    heard = [*heard, await ctx.listen("n", type=int)]
    await ctx.activity(note, f"{len(heard)}")
    if len(heard) < 4:
        ctx.continue_as_new(heard)
    return heard


@scenario(
    {
        "r 1": "workflow_continued ",
        "r 2": "workflow_continued ",
        "r 3": "workflow_continued ",
        "r 4": "completed [1,2,3,4]",
    }
)
async def continuing_with_signals(world: World) -> None:
    await world.start(relay, [], id="r")
    for number in (1, 2, 3, 4):
        await world.signal("r", "n", number)


def _stamp(execution_id: str) -> int:
    operated("stamp", execution_id)
    return 1


RETRIED = "workflow_retried builtins.ValueError: attempt"


@workflow(retry=AGAIN)
async def tries(ctx: Context) -> list[Any]:
    got: list[Any] = [await ctx.activity(note, "a"), await ctx.listen("n"), await ctx.workflow(kid, "k", id="k")]
    got.append(await ctx.run(_stamp, ctx.info.execution_id, name="stamp"))
    async with ctx.saga() as saga:
        await saga.step(note, "s", undo=undo)
        if ctx.info.attempt < 3:
            raise ValueError(f"attempt {ctx.info.attempt}")
    return got


@scenario(
    {
        "t 1": f"{RETRIED} 1 ()",
        "t 2": f"{RETRIED} 2 ()",
        "t 3": 'completed ["a",7,"k",1]',
        "k 1": 'completed "k"',
    }
)
async def a_retry_has_what_was_got(world: World) -> None:
    await world.start(tries, id="t")
    await world.signal("t", "n", 7)


@workflow(retry=AGAIN)
async def tries_with_open_ends(ctx: Context) -> list[Any]:
    child, promise = ctx.workflow(careful, "k", id="k"), ctx.promise("p")
    settled = ctx.promise("q")
    await child.started
    await ctx.activity(note, "begun")
    if ctx.info.attempt < 3:
        raise ValueError(f"attempt {ctx.info.attempt}")
    return [await child, await promise, await settled]


@scenario(
    {
        "t 1": f"{RETRIED} 1 ()",
        "t 2": f"{RETRIED} 2 ()",
        "t 3": 'completed ["k",1,2]',
        "k 1": 'completed "k"',
    }
)
async def a_retry_with_open_ends(world: World) -> None:
    await world.start(tries_with_open_ends, id="t")
    await world.tell("t", "resolve", "q", 2)
    await world.signal("k", "go", None)
    await world.advance(10 * MINUTE)
    await world.tell("t", "resolve", "p", 1)


@workflow
async def waiter(ctx: Context, number: int) -> int:
    await ctx.activity(note, f"{number}")
    return number + await ctx.listen("n", type=int)


@scenario({"d 1": "completed 3", "e 1": "completed 5", "g 1": "workflow_cancelled "})
async def delayed_starts(world: World) -> None:
    await world.start(waiter, 1, id="d", delay=5 * MINUTE)
    await world.start(waiter, 2, id="e", delay=90 * MINUTE)
    await world.start(waiter, 3, id="g", delay=90 * MINUTE)
    await world.signal("d", "n", 2)
    await world.tell("e", "begin")
    await world.cancel("g")
    await world.signal("e", "n", 3)


@workflow(timeout=5 * MINUTE)
async def too_slow(ctx: Context) -> None:
    try:
        await ctx.workflow(careful, "k", id="k")
    finally:
        await ctx.activity(note, "over")


@scenario(
    {
        "t 1": "workflow_failed resurgam.core.errors.WorkflowTimeout: workflow 'too_slow' (t) did not end within its timeout of 300 s ()",
        "k 1": "workflow_cancelled ",
    }
)
async def workflow_timeout(world: World) -> None:
    await world.start(too_slow, id="t")


@scenario({"r 1": "workflow_terminated replaced by another start of this id, run <r run 2>", "r 2": "completed 9"})
async def replacing(world: World) -> None:
    async def replace(engine: Engine) -> None:
        if len(await world.outside.transfer.copies("r")) == 1:  # a repeated call checks first whether it is done
            await engine.start(waiter, 2, id="r", if_exists="replace")

    await world.start(waiter, 1, id="r")
    await world.advance(MINUTE)
    await world.act(replace)
    await world.signal("r", "n", 7)
