"""Scenarios in which messages cross each other, and scenarios that an operator interferes with."""

import asyncio
from typing import Any

from resurgam import Context, Engine, RetryPolicy
from resurgam.errors import ActivityFailed, ChildWorkflowFailed
from support.faults import World, did
from support.scenarios.families import AGAIN, careful, kid, middle, undo, waiter
from support.scenarios.table import MINUTE, activity, scenario, workflow
from support.scenarios.verbs import fail, note, unserved


@workflow
async def busy_parent(ctx: Context) -> None:
    await ctx.workflow(careful, "kid", id="kid").started
    await asyncio.gather(ctx.activity(unserved), ctx.listen("never"))


@scenario(
    {"p 1": "workflow_terminated enough", "kid 1": "workflow_cancelled "},
    done=("<kid run 1>/2", "<kid run 1>/4"),
)
async def a_parent_is_terminated_at_work(world: World) -> None:
    """What it waits for is withdrawn, of which it hears when it has ended; its child is asked to stop once."""
    await world.start(busy_parent, id="p")
    await world.tell("p", "terminate", "enough")


@workflow(retry=AGAIN)
async def stubborn_kid(ctx: Context) -> int:
    await ctx.activity(note, "a")
    if ctx.info.attempt < 3:
        raise ValueError(f"attempt {ctx.info.attempt}")
    return ctx.info.attempt


@workflow
async def patient_parent(ctx: Context) -> int:
    return await ctx.workflow(stubborn_kid, id="k")


RETRIED = "workflow_retried builtins.ValueError: attempt"


@scenario({"p 1": "completed 3", "k 1": f"{RETRIED} 1 ()", "k 2": f"{RETRIED} 2 ()", "k 3": "completed 3"})
async def a_child_is_retried(world: World) -> None:
    await world.start(patient_parent, id="p")


@workflow
async def flops(ctx: Context) -> list[Any]:
    got = [await ctx.activity(note, "a"), await ctx.workflow(kid, "k", id="k"), await ctx.listen("n")]
    if ctx.info.attempt == 1:
        raise ValueError("flop")
    return got


@scenario(
    {
        "f 1": "workflow_failed builtins.ValueError: flop ()",
        "f 2": 'completed ["a","k",1]',
        "k 1": 'completed "k"',
    }
)
async def a_retry_by_hand(world: World) -> None:
    await world.start(flops, id="f")
    await world.signal("f", "n", 1)
    await world.finish()
    await world.tell("f", "retry")


@workflow
async def ping(ctx: Context, other: str, first: bool) -> list[int]:
    heard = []
    for number in range(3):
        if first:
            await ctx.signal(other, "ball", number)
        heard.append(await ctx.listen("ball", type=int))
        if not first:
            await ctx.signal(other, "ball", 10 * number)
    return heard


@scenario({"a 1": "completed [0,10,20]", "b 1": "completed [0,1,2]"})
async def two_that_talk(world: World) -> None:
    await world.start(ping, "a", False, id="b")
    await world.start(ping, "b", True, id="a")


@workflow
async def fans_out(ctx: Context) -> list[Any]:
    mapped = await ctx.map(note, ["x", "y", "z"], limit=2)
    kids = await asyncio.gather(*(ctx.workflow(kid, f"{n}", id=f"k{n}") for n in range(2)), return_exceptions=True)
    winner, _ = await ctx.race(ctx.workflow(careful, "loser", id="loser"), ctx.sleep(MINUTE))
    return [*mapped, *kids, winner]


@scenario(
    {
        "f 1": 'completed ["x","y","z","0","1",1]',
        "k0 1": 'completed "0"',
        "k1 1": 'completed "1"',
        "loser 1": "workflow_cancelled ",
    }
)
async def many_at_once(world: World) -> None:
    await world.start(fans_out, id="f")


@workflow
async def never_begins(ctx: Context) -> str:
    ctx.workflow(kid, "l", id="later", deferred=True, on_parent_close="cancel")
    await ctx.activity(note, "a")
    return "left"


@scenario({"p 1": 'completed "left"', "later 1": "workflow_cancelled "})
async def a_child_that_is_never_begun(world: World) -> None:
    await world.start(never_begins, id="p")


@workflow
async def borrows(ctx: Context) -> list[str]:
    """Ask for a child whose id is in use."""
    told = []
    for wanted in ("taken", "free"):
        try:
            told.append(await ctx.workflow(kid, wanted, id=wanted))
        except ChildWorkflowFailed as failed:
            told.append(type(failed.cause).__name__)
    return told


@scenario({"taken 1": "completed 3", "b 1": 'completed ["AlreadyExists","free"]', "free 1": 'completed "free"'})
async def an_id_that_is_taken(world: World) -> None:
    await world.start(waiter, 1, id="taken")
    await world.start(borrows, id="b")
    await world.finish_one("b")
    await world.signal("taken", "n", 2)


@activity(retry=RetryPolicy(max_attempts=2, initial_interval=5 * MINUTE, max_interval=5 * MINUTE, jitter=0))
async def undo_late(word: str | None) -> None:
    did()
    if activity.info().attempt == 1:
        raise ValueError("not yet")


@workflow
async def slow_to_undo(ctx: Context) -> str:
    try:
        async with ctx.saga() as saga:
            await saga.step(note, "a", undo=undo)
            await saga.step(note, "b", undo=undo_late)
            await saga.step(fail, "c")
    except ActivityFailed:
        return "taken back"
    return "never"


@scenario({"s 1": "workflow_cancelled "})
async def cancelled_while_taking_back(world: World) -> None:
    """All is taken back first; then it stops as it was asked to."""
    await world.start(slow_to_undo, id="s")
    await world.cancel("s")


# Said at once, while the engine is at work.


@scenario({"h 1": 'completed ["leaf"]', "middle 1": 'completed "leaf"', "leaf 1": 'completed "leaf"'})
async def paused_at_work(world: World) -> None:
    async def start_and_pause(engine: Engine) -> None:
        handle = await engine.start(head_of_many, id="h", if_exists="attach")
        await handle.pause(tree=True)

    await world.act(start_and_pause)
    await world.advance(MINUTE)
    await world.tell("h", "resume")
    await world.advance(MINUTE)
    await world.signal("leaf", "go", None)


@workflow
async def head_of_many(ctx: Context) -> list[str]:
    await ctx.activity(note, "head")
    return [await ctx.workflow(middle, id="middle")]


@scenario({"r 1": "completed [1,2,3]"})
async def signals_at_work(world: World) -> None:
    async def start_and_send(engine: Engine) -> None:
        handle = await engine.start(takes_three, id="r", if_exists="attach")
        for number in (1, 2, 3):
            await handle.signal("n", number, id=f"n-{number}")

    await world.act(start_and_send)
    await world.signal("r", "end", None)


@workflow
async def takes_three(ctx: Context) -> list[int]:
    heard = []
    for _ in range(3):
        heard.append(await ctx.listen("n", type=int))
        await ctx.activity(note, f"{heard[-1]}")
    await ctx.listen("end")
    return heard


@scenario({"c 1": "workflow_cancelled ", "kid 1": "workflow_cancelled "})
async def cancelled_at_work(world: World) -> None:
    async def start_and_cancel(engine: Engine) -> None:
        await engine.start(parent_of_kid, id="c", if_exists="attach")
        for _ in range(50):  # until both are at work
            await asyncio.sleep(0)
        await world.cancel_by(engine, "c")

    await world.act(start_and_cancel)


@workflow
async def parent_of_kid(ctx: Context) -> str:
    await ctx.activity(note, "a")
    return await ctx.workflow(careful, "kid", id="kid")


@workflow
async def start_worker(ctx: Context, generation: int) -> list[Any]:
    """Hear a signal and take an update in each of two generations."""
    sold: list[int] = []

    @ctx.on_update("sell")
    async def sell(number: int) -> int:
        await ctx.activity(note, f"{number}")
        sold.append(number)
        return number

    heard = [await ctx.listen("a"), await ctx.listen("a")]
    if generation == 1:
        ctx.continue_as_new(2)
    return [*heard, *sold]


@scenario(
    {"s 1": "workflow_continued ", "s 2": "completed [3,4,2]"},
    answers=["1", "1", "2", "2"],
)
async def one_id_for_a_signal_and_an_update(world: World) -> None:
    """What two kinds of things are called by those who send them is their own affair; also in the next generation."""
    await world.start(start_worker, 1, id="s")
    await world.update("s", "sell", 1, key="x")
    for number, key in enumerate(("x", "y", "v", "w"), 1):
        await world.signal("s", "a", number, key=key)
        if number == 2:
            await world.update("s", "sell", 2, key="y")
