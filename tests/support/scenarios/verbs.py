"""Scenarios of one workflow: one or two for each verb of the context."""

import asyncio
from typing import Any

from resurgam import Break, Context, Continue, NonRetryable, RetryPolicy, SignalTimeout
from resurgam.errors import ActivityFailed, PromiseTimeout
from support.faults import World, did, operated
from support.scenarios.table import MINUTE, ONCE, activity, scenario, workflow


@activity(retry=ONCE)
async def note(word: str) -> str:
    did()
    return word


@activity(retry=RetryPolicy(max_attempts=3, initial_interval=MINUTE, jitter=0))
async def stubborn(failures: int) -> int:
    did()
    attempt = activity.info().attempt
    if attempt <= failures:
        raise ValueError(f"attempt {attempt}")
    return attempt


@activity(retry=ONCE)
async def fail(word: str) -> str:
    did()
    raise NonRetryable(word)


async def stamp(name: str, execution_id: str) -> str:
    operated(name, execution_id)
    await asyncio.sleep(0)
    return name


def stamp_at_once(name: str, execution_id: str) -> str:
    operated(name, execution_id)
    return name


# Activities, operations, timers.


@workflow
async def chain(ctx: Context) -> list[Any]:
    told: list[Any] = [await ctx.activity(note, "a"), await ctx.activity(stubborn, 1)]
    try:
        await ctx.activity(stubborn, 3)
    except ActivityFailed as failed:
        told.append(str(failed.cause))
    return [*told, *await asyncio.gather(*(ctx.activity(note, word) for word in "xyz"))]


@scenario({"c 1": 'completed ["a",2,"attempt 3","x","y","z"]'})
async def activities(world: World) -> None:
    await world.start(chain, id="c")


@workflow
async def stamps(ctx: Context) -> list[Any]:
    me = ctx.info.execution_id
    first = await ctx.run(stamp, "one", me, name="one")
    second = await ctx.run(stamp_at_once, "two", me, name="two")
    both = await asyncio.gather(
        ctx.run(stamp, "three", me, name="three"),
        ctx.activity(note, "b"),
        ctx.run(stamp_at_once, "four", me, name="four"),
    )
    return [first, second, *both]


@scenario({"s 1": 'completed ["one","two","three","b","four"]'})
async def operations(world: World) -> None:
    await world.start(stamps, id="s")


@workflow
async def sleeper(ctx: Context) -> str:
    await ctx.sleep(MINUTE)
    await ctx.activity(note, "slept")
    winner, _ = await ctx.race(ctx.sleep(MINUTE), ctx.listen("never"))
    await asyncio.sleep(MINUTE)
    return f"won by {winner}"


@scenario({"s 1": 'completed "won by 0"'})
async def timers(world: World) -> None:
    await world.start(sleeper, id="s")


@activity(queue="unknown", start_timeout=5 * MINUTE)
async def unserved() -> None:
    did()


@workflow
async def waits_for_unserved(ctx: Context) -> list[str]:
    try:
        await ctx.activity(unserved)
    except ActivityFailed as failed:
        return [str(failed.cause), await ctx.activity(note, "gave up")]
    return []


@scenario({"w 1": 'completed ["activity \'unserved\' was not begun within 300 s","gave up"]'})
async def start_timeout(world: World) -> None:
    await world.start(waits_for_unserved, id="w")


# Signals, handlers, updates, queries.


@workflow
async def listener(ctx: Context) -> list[Any]:
    heard: list[Any] = [await ctx.listen("a"), await ctx.listen("a", "b")]
    heard.append(await ctx.activity(note, "between"))
    heard.append(await ctx.listen_many("c", limit=5))
    heard.append(await ctx.listen_many("c", limit=5, timeout=10 * MINUTE))
    try:
        await ctx.listen("d", timeout=MINUTE)
    except SignalTimeout:
        heard.append("late")
    return heard


@scenario({"l 1": 'completed [1,["b",2],"between",[3,4],[5],"late"]'})
async def signals(world: World) -> None:
    await world.start(listener, id="l")
    await world.signal("l", "c", 3)
    await world.signal("l", "c", 4)
    await world.signal("l", "a", 1)
    await world.signal("l", "b", 2)
    await world.advance(MINUTE)
    await world.signal("l", "c", 5)


@workflow
async def handles(ctx: Context) -> list[Any]:
    done: list[Any] = []

    @ctx.on_signal("job")
    async def job(number: int) -> None:
        done.append([await ctx.activity(note, f"job {number}"), number])

    await ctx.until(lambda: len(done) == 3)
    await ctx.sleep(MINUTE)
    return sorted(done)


@scenario({"h 1": 'completed [["job 1",1],["job 2",2],["job 3",3]]'})
async def signal_handler(world: World) -> None:
    await world.start(handles, id="h")
    for number in (1, 2, 3):
        await world.signal("h", "job", number)


@workflow
async def account(ctx: Context) -> int:
    total = 0

    def positive(amount: int) -> None:
        if amount < 1:
            raise ValueError(f"{amount}")

    @ctx.on_update("add", validator=positive)
    async def add(amount: int) -> int:
        nonlocal total
        await ctx.activity(note, f"add {amount}")
        total += amount
        return total

    @ctx.on_query("total")
    def so_far() -> int:
        return total

    await ctx.listen("close")
    return total


@scenario({"a 1": "completed 7"}, answers=["3", "3", "7", "7", "7", "7", "7"])
async def updates_and_queries(world: World) -> None:
    await world.start(account, id="a")
    await world.update("a", "add", 3, key="first")
    await world.update("a", "add", 4, key="second")
    await world.query("a", "total")
    await world.signal("a", "close", None)
    await world.finish()
    await world.query("a", "total")
    world.answers.append(await world.act(lambda engine: engine.handle("a").update("add", 4, id="second")))


@workflow
async def awaits_signals(ctx: Context) -> list[int]:
    return [await ctx.listen("n", type=int), await ctx.listen("n", type=int), await ctx.listen("end")]


@scenario({"n 1": "completed [1,2,0]"})
async def signal_with_start(world: World) -> None:
    for number in (1, 2):
        await world.act(
            lambda engine: engine.signal_with_start(
                awaits_signals, id="n", signal="n", value=number, signal_id=f"n-{number}"
            )
        )
    await world.signal("n", "end", 0)


# Promises and messages.


@workflow
async def promises(ctx: Context) -> list[Any]:
    first, second = ctx.promise("first"), ctx.promise("second")
    got: list[Any] = [await first, await ctx.activity(note, "first"), await second]
    try:
        await ctx.promise("third", timeout=MINUTE)
    except PromiseTimeout:
        got.append("late")
    return got


@scenario({"p 1": 'completed [1,"first",2,"late"]'})
async def promise_from_outside(world: World) -> None:
    await world.start(promises, id="p")
    await world.tell("p", "resolve", "second", 2)
    await world.tell("p", "resolve", "first", 1)


@workflow
async def asks(ctx: Context, settler: str) -> list[Any]:
    promise = ctx.promise("word")
    await ctx.signal(settler, "id", promise.promise_id)
    return [await promise, await ctx.activity(note, "got it")]


@workflow
async def settles(ctx: Context) -> list[bool]:
    promise_id = await ctx.listen("id", type=str)
    return [await ctx.resolve(promise_id, "yes"), await ctx.resolve(promise_id, "no")]


@scenario({"a 1": 'completed ["yes","got it"]', "s 1": "completed [true,false]"})
async def promise_from_a_workflow(world: World) -> None:
    await world.start(settles, id="s")
    await world.start(asks, "s", id="a")


@workflow
async def publisher(ctx: Context) -> None:
    for number in range(3):
        await ctx.publish("news", number)
        await ctx.activity(note, f"{number}")


@scenario({"p 1": "completed null"})
async def messages(world: World) -> None:
    await world.start(publisher, id="p")


# Loops that forget.


@workflow
async def pupil(ctx: Context, number: int) -> int:
    return 10 * number


async def turn_of_loop(ctx: Context, told: list[int]) -> Continue[list[int]] | Break[list[int]]:
    number = await ctx.listen("n", type=int)
    await ctx.activity(note, f"{number}")
    ctx.set("last", number)
    learned = await ctx.workflow(pupil, number, id=f"pupil-{number}")
    told = [*told, learned]
    return Break(told) if len(told) == 5 else Continue(told)


@workflow
async def endless(ctx: Context) -> list[int]:
    return await ctx.loop(turn_of_loop, [], forget_every=2)


@scenario({"e 1": "completed [10,20,30,40,50]", **{f"pupil-{n} 1": f"completed {10 * n}" for n in range(1, 6)}})
async def a_loop_that_forgets(world: World) -> None:
    await world.start(endless, id="e")
    for number in (1, 2, 3, 4, 5):
        await world.signal("e", "n", number)
