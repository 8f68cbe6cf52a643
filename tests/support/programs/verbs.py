"""Named programs: the verbs of the context."""

import asyncio
import contextlib

from resurgam.core.errors import SignalTimeout, describe
from resurgam.runtime.context.durable_loop import Break, Continue
from support.programs.tables import CANCEL, Notes, echo, fail, program, signal

# Races and conditions.


@program()
async def race_with_timer(ctx):
    """An activity against time, again and again; the loser is called off."""
    notes = Notes()
    for x in "abc":
        winner, value = await ctx.race(ctx.activity(echo, x), ctx.sleep(1))
        notes.append([winner, value])
    return notes


@program()
async def race_of_coroutines(ctx):
    """Coroutines of several steps; those who lose clean up."""
    notes = Notes()

    async def run(x, steps):
        try:
            for step in range(steps):
                await notes.take(ctx, f"{x}{step}")
        finally:
            await notes.take(ctx, f"{x} clean")
        return x

    notes.append(list(await ctx.race(run("a", 2), run("b", 1), run("c", 3))))
    await notes.take(ctx, "end")
    await ctx.sleep(1)
    return notes


@program()
async def race_that_fails(ctx):
    """A winner may be a failure; races may hold races."""
    notes = Notes()
    try:
        inner = ctx.race(ctx.activity(fail, "a"), ctx.activity(echo, "b"))
        notes.append(str(await ctx.race(inner, ctx.sleep(2))))
    except Exception as error:
        notes.append(describe(error))
    await notes.take(ctx, "end")
    return notes


@program()
async def race_cancelled(ctx):
    """Cancelling a race cancels all its competitors."""
    notes = Notes()
    race = ctx.race(notes.take(ctx, "a"), ctx.activity(echo, "b"))
    await ctx.sleep(1)
    notes.append(race.cancel())
    with contextlib.suppress(asyncio.CancelledError):
        notes.append(list(await race))
    await notes.take(ctx, "end")
    return notes


@program()
async def until_it_holds(ctx):
    """Strands that wait for what other strands do to a variable."""
    notes = Notes()

    async def wait(x, count):
        await ctx.until(lambda: len(notes) >= count)
        notes.append(f"{x} saw {len(notes)}")
        await notes.take(ctx, x)

    await asyncio.gather(wait("a", 4), wait("b", 2), wait("c", 2), notes.take(ctx, "d"), notes.take(ctx, "e"))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1):
            await ctx.until(lambda: False)
    return notes


@program()
async def branches_nested(ctx):
    """Strands below strands."""
    notes = Notes()

    async def tree(ctx, path, depth):
        await notes.take(ctx, path)
        if depth:
            await asyncio.gather(*(ctx.branch(tree, path + x, depth - 1, name=x) for x in "ab"))
        notes.append(f"{path} done")

    await ctx.branch(tree, "r", 2, name="tree")
    return notes


# Signals.


@program(signal("go", "first"), signal("go", "second"))
async def listen_with_timeout(ctx):
    """Signals against time, and against an activity."""
    notes = Notes()
    for x in "ab":
        try:
            notes.append(await ctx.listen("go", timeout=1))
        except SignalTimeout as error:
            notes.append(str(error))
        await notes.take(ctx, x)
    winner, value = await ctx.race(ctx.listen("go"), ctx.activity(echo, "c"), ctx.sleep(3))
    return [*notes, winner, value]


@program(signal("red", "1"), signal("blue", "2"), signal("red", "3"), signal("blue", "4"))
async def several_listeners(ctx):
    """Listeners of several strands, some for the same name, one of them cancelled."""
    notes = Notes()
    forgotten = ctx.listen("red")

    async def hear(x, *names):
        notes.append([x, await ctx.listen(*names)])
        await notes.take(ctx, x)

    tasks = [asyncio.create_task(hear(x, *names)) for x, names in (("a", ["red", "blue"]), ("b", ["blue"]))]
    await ctx.sleep(1)
    notes.append(forgotten.cancel() or forgotten.result())
    notes.append(await ctx.listen("red", "blue"))
    await asyncio.gather(*tasks)
    return notes


@program(signal("add", "a"), signal("add", "b"), signal("add", "c"), signal("stop", "now"))
async def mailbox_loop(ctx):
    """A loop over signals that starts work for each."""
    notes = Notes()
    async with asyncio.TaskGroup() as group:
        while True:
            name, value = await ctx.listen("add", "stop")
            notes.append(name)
            if name == "stop":
                break
            group.create_task(notes.take(ctx, value))
    return notes


# Side effects.


@program()
async def operations(ctx):
    """Side effects, plain, asynchronous, failing, and several at once."""
    notes = Notes()

    def plain(x):
        return x

    async def asynchronous(x):
        await asyncio.sleep(0)
        return x

    def broken():
        raise ValueError("broken")

    async def strand(x):
        await notes.take(ctx, x)
        notes.append(await ctx.run(plain, f"run {x}"))

    notes.append(await ctx.run(plain, "a"))
    notes += await asyncio.gather(
        ctx.run(asynchronous, "b"), ctx.activity(echo, "c"), ctx.run(plain, "d", name="named")
    )
    try:
        await ctx.run(broken)
    except Exception as error:
        notes.append(describe(error))
    await asyncio.gather(*map(strand, "ef"))
    ctx.run(plain, "never").cancel()
    return notes


# Callbacks.


@program()
async def call_soon_and_later(ctx):
    """The loop's own methods, used directly."""
    notes, loop = Notes(), asyncio.get_running_loop()
    done = loop.create_future()
    loop.call_later(2, notes.append, "later")
    loop.call_at(loop.time() + 1, notes.append, "at")
    loop.call_later(1, notes.append, "never").cancel()
    loop.call_later(3, done.set_result, None)
    loop.call_soon(notes.append, "soon")
    await asyncio.gather(notes.take(ctx, "a"), notes.take(ctx, "b"))
    await done
    return notes


@program()
async def done_callback_starts_task(ctx):
    """Callbacks of futures begin strands and make durable calls."""
    notes, tasks = Notes(), []

    def then(future):
        tasks.append(asyncio.create_task(notes.take(ctx, f"after {future.result()}")))
        ctx.set("last", future.result())

    futures = [ctx.activity(echo, x) for x in "abc"]
    for future in futures:
        future.add_done_callback(then)
    await asyncio.gather(*futures)
    await asyncio.gather(*tasks)
    return [*notes, ctx.get("last")]


@program()
async def callback_outlives_strand(ctx):
    """A strand has returned before its callbacks make durable calls."""
    notes, tasks = Notes(), []

    async def strand(x):
        future = ctx.activity(echo, x)
        future.add_done_callback(lambda _: tasks.append(asyncio.create_task(notes.take(ctx, f"after {x}"))))
        asyncio.get_running_loop().call_later(1, ctx.set, "late", x)

    await asyncio.gather(strand("a"), strand("b"))
    await ctx.sleep(2)
    await ctx.until(lambda: len(tasks) == 2)
    await asyncio.gather(*tasks)
    return [*notes, ctx.get("late")]


@program()
async def callback_after_root(ctx):
    """What the root leaves behind in the very tick in which it returns."""
    loop = asyncio.get_running_loop()

    async def strand():
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        ctx.activity(echo, "late")

    await ctx.activity(echo, "a")
    asyncio.create_task(strand())  # noqa: RUF006 -- it is never awaited
    loop.call_soon(loop.call_soon, loop.call_soon, loop.call_soon, lambda: ctx.activity(echo, "later"))
    return "done"


@program()
async def tags(ctx):
    """Tags change in the root, in strands and in loops that forget."""
    notes = Notes()
    ctx.tag(a="1", b="1")

    async def strand(x):
        await ctx.activity(echo, x)
        ctx.tag(strand=x, b=None)

    async def body(ctx, number):
        ctx.tag(number=str(number))
        await ctx.sleep(1)
        return Break(number) if number == 3 else Continue(number + 1)

    await asyncio.gather(strand("x"), strand("y"), notes.take(ctx, "z"))
    return [*notes, await ctx.loop(body, 1, forget_every=1)]


# Failures.


@program()
async def exception_groups(ctx):
    """Failures of a group, told apart by type."""
    notes = Notes()

    async def wrong(x):
        await notes.take(ctx, x)
        raise KeyError(x)

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(wrong("a"))
            group.create_task(wrong("b"))
            group.create_task(notes.take(ctx, "c", fail))
    except* KeyError as errors:
        notes.append(["keys", [str(error) for error in errors.exceptions]])
        await notes.take(ctx, "handled")
    except* Exception as errors:
        notes.append(["others", [str(error) for error in errors.exceptions]])
        await notes.take(ctx, "handled too")
    return notes


@program(fails=True)
async def failing_workflow(ctx):
    """An error leaves the root while siblings are at work."""
    notes = Notes()
    task = asyncio.create_task(notes.take(ctx, "sibling"))
    await asyncio.gather(ctx.activity(fail, "a"), ctx.sleep(1), task)


@program()
async def task_that_is_never_awaited(ctx):
    """A task that fails and is forgotten changes nothing."""
    notes = Notes()
    asyncio.create_task(notes.take(ctx, "a", fail))  # noqa: RUF006 -- it is never awaited
    await notes.take(ctx, "b")
    await ctx.sleep(1)
    await notes.take(ctx, "c")
    return notes


@program(CANCEL, signal("go", "1"))
async def everything_at_once(ctx):
    """A race, a group, a limit, a queue, a signal and a request to stop."""
    notes, queue = Notes(), asyncio.Queue()

    async def feed(x):
        await queue.put(await notes.take(ctx, x))

    async def group():
        async with asyncio.TaskGroup() as tasks:
            for x in "ab":
                tasks.create_task(feed(x))
            first = await asyncio.wait_for(queue.get(), 2)
            tasks.create_task(feed(first + "!"))
        return [queue.get_nowait() for _ in range(queue.qsize())]

    try:
        async with asyncio.timeout(4):
            notes.append(list(await ctx.race(group(), ctx.listen("go"))))
            await ctx.sleep(1)
    except (TimeoutError, asyncio.CancelledError, ExceptionGroup) as error:
        notes.append(type(error).__name__)
        await notes.take(ctx, "clean")
    return notes
