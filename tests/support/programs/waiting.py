"""Named programs: gathering, task groups, waiting, and limits of time. See `programs`."""

import asyncio
import contextlib
from contextvars import ContextVar

from resurgam.core.errors import describe
from support.programs.tables import Notes, echo, fail, program

# Gathering.


@program(expect=["a", "b", "c"])
async def gather(ctx):
    """Durable futures, gathered."""
    return await asyncio.gather(*(ctx.activity(echo, x) for x in "abc"))


@program()
async def gather_nested(ctx):
    """Gatherings of coroutines inside a gathering."""
    notes = Notes()

    async def pair(x, y):
        return await asyncio.gather(notes.take(ctx, x), notes.take(ctx, y))

    return [await asyncio.gather(pair("a", "b"), notes.take(ctx, "c"), pair("d", "e")), notes]


@program()
async def gather_return_exceptions(ctx):
    """Failures come back as values, in the order of the arguments."""
    notes = Notes()
    given = [notes.take(ctx, "a"), notes.take(ctx, "b", fail), notes.take(ctx, "c"), ctx.activity(fail, "d")]
    found = await asyncio.gather(*given, return_exceptions=True)
    return [[describe(x) if isinstance(x, Exception) else x for x in found], notes]


@program()
async def gather_failing(ctx):
    """The first failure leaves the gathering while its siblings go on."""
    notes = Notes()
    tasks = [asyncio.create_task(notes.take(ctx, x, fail if x in "bd" else echo)) for x in "abcde"]
    try:
        await asyncio.gather(*tasks)
    except Exception as error:
        notes.append(f"caught {describe(error)}")
    notes.append(sum(task.done() for task in tasks))
    await asyncio.wait(tasks)
    return notes


@program()
async def gather_cancelled(ctx):
    """Cancelling a gathering cancels all of it."""
    notes = Notes()
    gathered = asyncio.gather(*(notes.take(ctx, x) for x in "abc"))
    await ctx.activity(echo, "before")
    notes.append(gathered.cancel())
    try:
        notes.append(await gathered)
    except asyncio.CancelledError:
        notes.append("cancelled")
    return notes


# Task groups.


@program()
async def task_group(ctx):
    """All tasks of a group, and one that another of them adds."""
    notes = Notes()

    async def more(x):
        await notes.take(ctx, x)
        group.create_task(notes.take(ctx, x + x))

    async with asyncio.TaskGroup() as group:
        for x in "abc":
            group.create_task(more(x))
    return notes


@program()
async def task_group_failing(ctx):
    """A failure cancels the siblings, whose clean-up makes durable calls."""
    notes = Notes()

    async def careful(x):
        try:
            await notes.take(ctx, x)
            await ctx.sleep(5)
        finally:
            await notes.take(ctx, f"clean {x}")

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(careful("a"))
            group.create_task(notes.take(ctx, "b", fail))
            group.create_task(careful("c"))
    except* Exception as group_error:
        notes.append([describe(error) for error in group_error.exceptions])
    return notes


@program()
async def task_group_nested_inner_fails(ctx):
    """The inner group fails; the outer one hears of it and cancels its own."""
    notes = Notes()

    async def inner():
        async with asyncio.TaskGroup() as group:
            group.create_task(notes.take(ctx, "a", fail))
            group.create_task(notes.take(ctx, "b"))

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(inner())
            group.create_task(notes.take(ctx, "c"))
            await notes.take(ctx, "body")
    except* Exception as group_error:
        notes.append(sorted(map(str, _leaves(group_error))))
    return notes


def _leaves(error):
    return [leaf for inner in error.exceptions for leaf in _leaves(inner)] if hasattr(error, "exceptions") else [error]


@program(expect=["a", "b", "c"])
async def task_group_of_durables(ctx):
    """Durable futures stand where a group wants coroutines."""
    async with asyncio.TaskGroup() as group:
        futures = [group.create_task(ctx.activity(echo, x)) for x in "abc"]
    return [future.result() for future in futures]


@program()
async def task_group_of_durables_failing(ctx):
    """A failing activity calls off the timers and activities of its group."""
    notes = Notes()
    try:
        async with asyncio.TaskGroup() as group:
            futures = [group.create_task(ctx.activity(fail if x == "b" else echo, x), name=x) for x in "abc"]
            futures.append(group.create_task(ctx.sleep(3)))
    except* Exception as group_error:
        notes.append([describe(error) for error in group_error.exceptions])
    return [*notes, [future.get_name() for future in futures if future.cancelled()]]


@program()
async def task_group_shutting_down(ctx):
    """A group that is shutting down takes nothing more, be it a coroutine or a durable future."""
    notes = Notes()

    async def late():
        try:
            await ctx.sleep(9)
        except asyncio.CancelledError:
            for make in (lambda: ctx.activity(echo, "x"), lambda: notes.take(ctx, "y")):
                late_one = make()
                try:
                    group.create_task(late_one)
                except RuntimeError as error:
                    notes.append(str(error).rsplit(">", 1)[-1])
                    late_one.cancel() if hasattr(late_one, "cancel") else late_one.close()
            raise

    with contextlib.suppress(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(late())
            group.create_task(notes.take(ctx, "a", fail))
    return notes


# Waiting.


@program(expect=[["a", "b", "c", "d"], 0])
async def wait_all_completed(ctx):
    """All of a set."""
    done, pending = await asyncio.wait([ctx.activity(echo, x) for x in "abcd"])
    return [sorted(future.result() for future in done), len(pending)]


@program()
async def wait_first_completed(ctx):
    """The tasks that are done, until all are, in the order of the sets."""
    notes = Notes()
    pending = {asyncio.create_task(notes.take(ctx, x)) for x in "abcdef"}
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        notes.append([task.result() for task in done])
        await notes.take(ctx, f"after {len(pending)}")
    return notes


@program()
async def wait_first_exception(ctx):
    """Until one fails; the rest is cancelled in the order of the set."""
    notes = Notes()
    tasks = [asyncio.create_task(notes.take(ctx, x, fail if x in "ce" else echo)) for x in "abcdef"]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    notes.append([describe(task.exception()) if task.exception() else task.result() for task in done])
    for task in pending:
        task.cancel()
    notes.append([describe(x) for x in await asyncio.gather(*pending, return_exceptions=True) if x])
    return notes


@program()
async def wait_with_timeout(ctx):
    """What is done in time, again and again."""
    notes = Notes()
    pending = {ctx.activity(echo, x) for x in "abcd"} | {ctx.sleep(1), ctx.sleep(3)}
    while pending:
        done, pending = await asyncio.wait(pending, timeout=1)
        notes.append([future.result() for future in done])
    return notes


@program()
async def wait_over_bare_futures(ctx):
    """Sets of futures that stand nowhere in the history: gatherings, plain futures and conditions."""
    notes = Notes()
    plain = [asyncio.get_running_loop().create_future() for _ in range(4)]
    gathered = [asyncio.gather(ctx.activity(echo, x), ctx.activity(echo, x + x)) for x in "abc"]
    pending = {*plain, *gathered, ctx.until(lambda: len(notes) > 1)}
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(notes.take(ctx, "w"), 2)
    pending |= {asyncio.gather(ctx.activity(echo, x)) for x in "defgh"}
    for x, future in enumerate(plain):
        future.set_result(x)
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        notes += [future.result() for future in done]
        await notes.take(ctx, len(pending))
    return notes


# Time.


@program()
async def wait_for_answer(ctx):
    """An activity in time or not, and steps after it in the same strand."""
    notes = Notes()
    try:
        notes.append(await asyncio.wait_for(ctx.activity(echo, "a"), 10))
    except TimeoutError:
        notes.append("late")
    await notes.take(ctx, "b")
    return notes


@program(expect=["late", "late", "b"])
async def wait_for_timing_out(ctx):
    """What never comes, and what has no time at all."""
    notes = Notes()
    for timeout in (1, 0):
        try:
            await asyncio.wait_for(ctx.listen("never"), timeout)
        except TimeoutError:
            notes.append("late")
    await notes.take(ctx, "b")
    return notes


@program()
async def wait_for_many_steps(ctx):
    """A coroutine of several durable calls with clean-up, followed by further steps."""
    notes = Notes()

    async def steps(x):
        try:
            await notes.take(ctx, x + "1")
            await ctx.sleep(1)
            await notes.take(ctx, x + "2")
        finally:
            await notes.take(ctx, x + "3")

    for x in "ab":
        try:
            await asyncio.wait_for(steps(x), 2)
        except TimeoutError:
            notes.append("late")
        await notes.take(ctx, x)
    return notes


@program()
async def wait_for_with_tasks_inside(ctx):
    """Tasks that begin inside what is waited for are strands of their own."""
    notes = Notes()

    async def steps():
        task = asyncio.create_task(notes.take(ctx, "task"))
        await notes.take(ctx, "step")
        await asyncio.wait_for(notes.take(ctx, "deep"), 5)
        return await task

    try:
        notes.append(await asyncio.wait_for(steps(), 3))
    except TimeoutError:
        notes.append("late")
    return notes


@program()
async def wait_for_without_time(ctx):
    """A coroutine that has no time at all never starts; one without a limit runs as it is."""
    notes = Notes()
    try:
        await asyncio.wait_for(notes.take(ctx, "never"), 0)
    except TimeoutError:
        notes.append("late")
    await asyncio.wait_for(notes.take(ctx, "a"), None)
    return notes


@program(
    bound="on 3.11 asyncio.wait_for runs a coroutine in a task, so that within a tick it starts a step later than on 3.12"
)
async def wait_for_in_step_with_others(ctx):
    """Strands that touch a list within one tick, one of them below a limit of time, and what that decides."""
    notes = Notes()

    async def touch(x):
        notes.append(x)
        await ctx.activity(echo, x)

    async def limited():
        await asyncio.wait_for(touch("limited"), 5)

    await asyncio.gather(asyncio.create_task(limited()), touch("free"), return_exceptions=True)
    await (ctx.sleep(1) if notes[0] == "limited" else ctx.activity(echo, "free was first"))
    return notes


VARIABLE: ContextVar[str] = ContextVar("VARIABLE", default="nothing")


@program(bound="on 3.11 asyncio.wait_for runs a coroutine in a copy of the context, so that what it sets is not seen")
async def wait_for_and_context(ctx):
    """What is set below a limit of time is seen by the caller, or is not."""

    async def inside():
        VARIABLE.set(await ctx.activity(echo, "set inside"))

    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(inside(), 100)
    return VARIABLE.get()


@program()
async def timeouts_nested(ctx):
    """The inner limit, the outer one, or none."""
    notes = Notes()
    try:
        async with asyncio.timeout(5):
            try:
                async with asyncio.timeout(3):
                    await notes.take(ctx, "a")
                    await ctx.sleep(2)
                    await notes.take(ctx, "b")
            except TimeoutError:
                notes.append("inner")
            await ctx.sleep(1)
            await notes.take(ctx, "c")
    except TimeoutError:
        notes.append("outer")
    return notes


@program()
async def timeout_rescheduled(ctx):
    """A limit that is moved, taken away and set again."""
    notes = Notes()
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(1) as limit:
            limit.reschedule(loop.time() + 4)
            await notes.take(ctx, "a")
            limit.reschedule(None)
            await ctx.sleep(2)
            limit.reschedule(loop.time() + 1)
            await notes.take(ctx, "b")
            limit.reschedule(loop.time())
            await ctx.sleep(0)
            await ctx.sleep(1)
    except TimeoutError:
        notes.append("late")
    return [*notes, limit.expired()]


@program()
async def timeout_at(ctx):
    """A limit at a moment of the workflow's own time."""
    notes = Notes()
    moment = asyncio.get_running_loop().time() + 2
    for x in "abc":
        try:
            async with asyncio.timeout_at(moment):
                await ctx.sleep(1)
                await notes.take(ctx, x)
        except TimeoutError:
            notes.append(f"{x} late")
    return notes


@program()
async def sleeps_mixed(ctx):
    """asyncio's sleep and the context's are the same thing."""
    notes = Notes()

    async def nap(x, sleep, seconds):
        await sleep(seconds)
        notes.append(x)
        await notes.take(ctx, f"after {x}")

    await asyncio.gather(
        nap("a", asyncio.sleep, 2), nap("b", ctx.sleep, 2), nap("c", ctx.sleep, 1), nap("d", asyncio.sleep, 1.5)
    )
    return notes


@program(expect=["a", "b", "a", "b", "a", "b", "x"])
async def sleep_zero(ctx):
    """Tasks that give way to each other by sleeping for no time."""
    notes = Notes()

    async def polite(x):
        for _ in range(3):
            notes.append(x)
            await asyncio.sleep(0)

    await asyncio.gather(polite("a"), polite("b"))
    await notes.take(ctx, "x")
    return notes
