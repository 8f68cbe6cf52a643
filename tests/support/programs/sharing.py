"""Named programs: cancelling, queues, locks, generators, and what strands share. See `programs`."""

import asyncio
import contextlib
from contextvars import ContextVar

from resurgam.core.errors import describe
from support.programs.tables import CANCEL, Notes, echo, fail, program

# Shielding and cancelling.


@program()
async def shield_under_cancel(ctx):
    """The waiter is cancelled, the shielded task goes on."""
    notes = Notes()
    work = asyncio.create_task(notes.take(ctx, "work"))

    async def waiting():
        try:
            notes.append(await asyncio.shield(work))
        except asyncio.CancelledError:
            notes.append("waiter cancelled")
            raise

    waiter = asyncio.create_task(waiting())
    await notes.take(ctx, "x")
    waiter.cancel()
    await asyncio.wait([waiter])
    notes.append(await work)
    return notes


@program()
async def shield_with_timeout(ctx):
    """Time runs out on the waiting, not on the work."""
    notes = Notes()
    work = asyncio.shield(notes.take(ctx, "work"))
    try:
        notes.append(await asyncio.wait_for(asyncio.shield(work), 1))
    except TimeoutError:
        notes.append("late")
    try:
        async with asyncio.timeout(1):
            await asyncio.shield(ctx.activity(echo, "other"))
    except TimeoutError:
        notes.append("late again")
    notes.append(await work)
    return notes


@program()
async def task_cancelled_with_cleanup(ctx):
    """Clean-up that awaits an activity, and is cancelled a second time while it does."""
    notes = Notes()

    async def work():
        try:
            await notes.take(ctx, "work")
        finally:
            try:
                await notes.take(ctx, "clean")
            finally:
                await notes.take(ctx, "cleaner")

    task = asyncio.create_task(work())
    await notes.take(ctx, "x")
    task.cancel("once")
    await notes.take(ctx, "y")
    notes.append(task.cancel("twice"))
    await asyncio.wait([task])
    return [*notes, task.cancelled()]


@program()
async def task_swallows_cancel(ctx):
    """A task that will not be cancelled."""
    notes = Notes()

    async def stubborn():
        for x in "abc":
            with contextlib.suppress(asyncio.CancelledError):
                await notes.take(ctx, x)
        return "stubborn"

    task = asyncio.create_task(stubborn())
    for _ in range(2):
        await notes.take(ctx, "x")
        task.cancel()
    notes.append(await task)
    return notes


@program(expect="done")
async def task_outlives_root(ctx):
    """The root returns while tasks, activities and timers go on."""
    notes = Notes()

    async def endless():
        try:
            while True:
                await notes.take(ctx, "again")
                await ctx.sleep(1)
        finally:
            await notes.take(ctx, "never recorded")

    asyncio.create_task(endless())  # noqa: RUF006 -- it is never awaited
    await ctx.activity(echo, "x")
    ctx.activity(echo, "not awaited")
    await ctx.sleep(2)
    return "done"


@program()
async def context_manager_cleanup(ctx):
    """The end of an asynchronous context makes durable calls, also under cancellation."""
    notes = Notes()

    @contextlib.asynccontextmanager
    async def held(x):
        await notes.take(ctx, f"open {x}")
        try:
            yield x
        finally:
            await notes.take(ctx, f"close {x}")

    async def work():
        async with contextlib.AsyncExitStack() as stack:
            for x in "ab":
                await stack.enter_async_context(held(x))
            await notes.take(ctx, "work")

    task = asyncio.create_task(work())
    await notes.take(ctx, "x")
    await ctx.sleep(1)
    task.cancel()
    await asyncio.wait([task])
    return [*notes, task.cancelled()]


@program(CANCEL)
async def cancelled_with_cleanup(ctx):
    """The workflow is cancelled and cleans up, unless it ends before."""
    notes = Notes()
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(notes.take(ctx, "a"))
            group.create_task(notes.take(ctx, "b"))
            await ctx.sleep(5)
    finally:
        ctx.set("notes", notes)
        await notes.take(ctx, "clean")
        await asyncio.sleep(1)
    return notes


@program(CANCEL, CANCEL)
async def cancelled_but_goes_on(ctx):
    """The workflow takes a request to stop as a hint."""
    notes = Notes()
    for x in "abc":
        try:
            await asyncio.gather(notes.take(ctx, x), notes.take(ctx, x + x))
        except asyncio.CancelledError:
            notes.append(f"asked to stop at {x}")
    return notes


# Queues and locks.


@program()
async def queue_of_producers(ctx):
    """Two producers and two consumers of a small queue."""
    notes, queue = Notes(), asyncio.Queue(maxsize=1)

    async def produce(x):
        for number in range(3):
            await queue.put(await ctx.activity(echo, f"{x}{number}"))
        await queue.put(None)

    async def consume(name):
        while (item := await queue.get()) is not None:
            notes.append(f"{name} got {item}")
            await notes.take(ctx, f"{name} did {item}")

    await asyncio.gather(produce("a"), produce("b"), consume("c"), consume("d"))
    return notes


@program()
async def queue_by_priority(ctx):
    """What is urgent comes first."""
    notes, queue = Notes(), asyncio.PriorityQueue()

    async def produce(x):
        queue.put_nowait((await ctx.activity(echo, x), f"item {x}"))

    async def consume():
        for _ in range(4):
            notes.append((await queue.get())[1])
            await notes.take(ctx, "worked")

    await asyncio.gather(*map(produce, (3, 1, 2, 0)), consume())
    return notes


@program()
async def queue_last_in_first_out(ctx):
    """What came last goes first."""
    notes, queue = Notes(), asyncio.LifoQueue(maxsize=2)

    async def produce(x):
        await queue.put(await ctx.activity(echo, x))

    producers = [asyncio.create_task(produce(x)) for x in "abcd"]
    for _ in producers:
        notes.append(await queue.get())
        await ctx.sleep(1)
    return notes


@program()
async def queue_joined(ctx):
    """Workers until everything that was put is done; then they are cancelled."""
    notes, queue = Notes(), asyncio.Queue()

    async def worker(name):
        while True:
            item = await queue.get()
            await notes.take(ctx, f"{name}{item}")
            if item == 1:
                queue.put_nowait(9)
            queue.task_done()

    for item in range(5):
        queue.put_nowait(item)
    workers = [asyncio.create_task(worker(name)) for name in "ab"]
    await queue.join()
    for task in workers:
        task.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    return notes


@program(expect=["a", "a", "b", "b", "c", "c", "d", "d"])
async def lock_is_fair(ctx):
    """The lock is given in the order of asking."""
    notes, lock = Notes(), asyncio.Lock()

    async def hold(x):
        async with lock:
            notes.append(x)
            await notes.take(ctx, x)

    await asyncio.gather(*map(hold, "abcd"))
    return notes


@program()
async def semaphore_fan_out(ctx):
    """No more than three at a time."""
    notes, limit = Notes(), asyncio.BoundedSemaphore(3)
    running = 0

    async def work(x):
        nonlocal running
        async with limit:
            running += 1
            notes.append(running)
            await notes.take(ctx, x)
            running -= 1

    async with asyncio.TaskGroup() as group:
        for x in range(7):
            group.create_task(work(x))
    return notes


@program()
async def condition_notified(ctx):
    """Waiters of a condition, woken one and then all."""
    notes, condition, stock = Notes(), asyncio.Condition(), []

    async def take(x):
        async with condition:
            await condition.wait_for(lambda: stock)
            notes.append(f"{x} took {stock.pop(0)}")
        await notes.take(ctx, x)

    async def bring(x, notify):
        item = await ctx.activity(echo, x)
        async with condition:
            stock.append(item)
            notify()

    takers = [take(x) for x in "abc"]
    await asyncio.gather(
        *takers, bring(1, condition.notify), bring(2, condition.notify_all), bring(3, condition.notify)
    )
    return notes


@program()
async def event_broadcast(ctx):
    """All who wait for an event hear of it, in the order in which they came."""
    notes, event = Notes(), asyncio.Event()

    async def wait(x):
        await notes.take(ctx, x)
        await event.wait()
        notes.append(f"{x} heard")

    tasks = [asyncio.create_task(wait(x)) for x in "abc"]
    await notes.take(ctx, "root")
    event.set()
    await asyncio.gather(*tasks)
    return notes


@program()
async def barrier(ctx):
    """Three meet, twice."""
    notes, meeting = Notes(), asyncio.Barrier(3)

    async def walk(x):
        for round_ in range(2):
            await notes.take(ctx, f"{x}{round_}")
            notes.append([x, await meeting.wait()])

    await asyncio.gather(*map(walk, "abc"))
    return notes


# Generators and iterators.


@program()
async def as_completed_over_tasks(ctx):
    """Tasks as they are done."""
    notes = Notes()
    tasks = [asyncio.create_task(notes.take(ctx, x, fail if x == "c" else echo)) for x in "abcd"]
    for next_one in asyncio.as_completed([*tasks, ctx.activity(echo, "e")]):
        try:
            notes.append([await next_one])
        except Exception as error:
            notes.append([describe(error)])
        await ctx.activity(echo, "between")
    return notes


@program(expect=["a", "b", "c", "closed", "end"])
async def generator_consumed(ctx):
    """An asynchronous generator that makes durable calls."""
    notes = Notes()

    async def generate():
        try:
            for x in "abc":
                yield await ctx.activity(echo, x)
        finally:
            notes.append(await ctx.activity(echo, "closed"))

    async for x in generate():
        notes.append(x)
    await notes.take(ctx, "end")
    return notes


@program(expect=["a", "b", "explicit", "end"])
async def generator_left_half_way(ctx):
    """Generators that are left in the middle; only what is closed on purpose cleans up."""
    notes = Notes()

    async def generate(x, cleanup):
        try:
            while True:
                yield await ctx.activity(echo, x)
        finally:
            notes.append(await ctx.activity(echo, cleanup))

    async for x in generate("a", "by the garbage collector"):
        notes.append(x)
        break
    async with contextlib.aclosing(generate("b", "explicit")) as generator:
        async for x in generator:
            notes.append(x)
            break
    await notes.take(ctx, "end")
    return notes


# What is shared, and what belongs to a strand.


@program()
async def shared_list_decides(ctx):
    """Strands that decide by what others have done so far, and call different things."""
    notes = Notes()

    async def strand(x):
        await notes.take(ctx, x)
        if len(notes) % 2:
            await ctx.sleep(1)
            notes.append(f"{x} slept")
        else:
            await notes.take(ctx, f"{x} after {notes[-2]}")
        if notes[-1] != x:
            await notes.take(ctx, f"{x} at the end")

    await asyncio.gather(*map(strand, "abcd"))
    return notes


@program()
async def chance_per_strand(ctx):
    """Random numbers, ids and time of several strands."""
    notes = Notes()

    async def strand(x):
        first = ctx.random.randrange(1000)
        await notes.take(ctx, x)
        notes.append([x, first, ctx.random.randrange(1000), str(ctx.uuid4()), ctx.now().isoformat()])
        await ctx.sleep(ctx.random.random())

    await asyncio.gather(*map(strand, "abc"))
    return [*notes, ctx.random.random()]


VARIABLE: ContextVar[str] = ContextVar("VARIABLE", default="nothing")


@program()
async def context_variables(ctx):
    """Each task has a context of its own."""
    notes = Notes()

    async def strand(x):
        before = VARIABLE.get()
        VARIABLE.set(x)
        await notes.take(ctx, x)
        notes.append([before, VARIABLE.get()])

    VARIABLE.set("root")
    await asyncio.gather(strand("a"), strand("b"), asyncio.create_task(strand("c")))
    async with asyncio.TaskGroup() as group:
        VARIABLE.set("later")
        group.create_task(strand("d"))
    return [*notes, VARIABLE.get()]


@program()
async def state_of_the_workflow(ctx):
    """What is kept in the durable state by several strands."""

    async def strand(x):
        ctx.set(x, await ctx.activity(echo, x))
        ctx.set("order", [*ctx.get("order", []), x])
        await ctx.sleep(1)
        ctx.clear(x)

    await asyncio.gather(*map(strand, "abc"))
    return [ctx.get("order"), ctx.get("a", "gone")]
