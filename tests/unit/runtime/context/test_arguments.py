"""Arguments of the context's verbs: wrong ones are refused at the call, with an error that names them."""

import asyncio
import functools
from datetime import datetime

import pytest

from resurgam import Break, Context, NonRetryable, Registry, errors
from resurgam.testing import Environment, replay


async def test_a_signal_handler_of_two_values_is_refused():
    """A signal has one value: the workflow fails where it registers the handler."""
    registry = Registry()

    @registry.workflow
    async def talk(ctx: Context) -> None:
        @ctx.on_signal("pair")
        def pair(left: int, right: int) -> None: ...

        await ctx.listen("end")

    async with Environment(registry=registry) as env:
        with pytest.raises(errors.WorkflowFailed, match="signal 'pair' must accept one value"):
            await env.finish((await env.start(talk)).result())


@pytest.mark.parametrize("kind", ["on_query", "on_update", "on_signal"])
async def test_a_handler_without_its_name_is_refused(kind):
    """`@ctx.on_query` without parentheses would register nothing."""
    registry = Registry()

    @registry.workflow
    async def bare(ctx: Context) -> str:
        @getattr(ctx, kind)
        def total() -> int:
            return 1

        return "went on without its handler"

    async with Environment(registry=registry) as env:
        with pytest.raises(errors.WorkflowFailed, match=kind):
            await env.finish((await env.start(bare)).result(timeout=60))


async def test_until_refuses_an_async_predicate():
    """Its coroutine would be truthy at once."""
    registry = Registry()

    @registry.workflow
    async def waits(ctx: Context) -> str:
        async def ready() -> bool:
            return False

        await ctx.until(ready)  # type: ignore[arg-type]
        return "went on"

    async with Environment(registry=registry) as env:
        with pytest.raises(errors.WorkflowFailed, match="until"):
            await env.finish((await env.start(waits)).result(timeout=60))


async def test_undo_on_unknown_requires_an_undo_that_accepts_none():
    """It is called with None if the outcome of the step is unknown; the undo is checked before the step runs."""
    registry = Registry()
    booked: list[str] = []

    @registry.activity
    async def book() -> str:
        booked.append("b")
        raise NonRetryable("who knows")

    @registry.activity
    async def unbook(booking: str) -> None: ...

    @registry.workflow
    async def trip(ctx: Context) -> None:
        async with ctx.saga() as saga:
            await saga.step(book, undo=unbook, undo_on_unknown=True)

    async with Environment(registry=registry) as env:
        with pytest.raises(errors.WorkflowFailed, match="'unbook' may be called with None, which it does not take"):
            await env.finish((await env.start(trip)).result())
    assert not booked


registry = Registry()


NAIVE = datetime.fromisoformat("2030-01-01")


LENGTH = "a duration must be seconds or a timedelta, got {}"


@registry.activity
async def echo(text: str) -> str:
    return text


@registry.workflow
async def listens(ctx: Context) -> str:
    return await ctx.listen("go")


CALLS = {
    "set(5)": (lambda ctx: ctx.set(5, 1), TypeError, "state key must be a non-empty string, got 5"),
    "set([])": (lambda ctx: ctx.set([], 1), TypeError, "state key must be a non-empty string, got []"),
    "set(None)": (
        lambda ctx: ctx.set(None, 1),
        TypeError,
        "state key must be a non-empty string, got None",
    ),
    "clear(7)": (lambda ctx: ctx.clear(7), TypeError, "state key must be a non-empty string, got 7"),
    "clear(None)": (
        lambda ctx: ctx.clear(None),
        TypeError,
        "state key must be a non-empty string, got None",
    ),
    "run(name=5)": (lambda ctx: ctx.run(int, name=5), TypeError, "must be a string, got 5"),
    "branch(name=5)": (lambda ctx: ctx.branch(lambda _: None, name=5), TypeError, "must be a string, got 5"),
    "branch(5)": (lambda ctx: ctx.branch(lambda _: 5), TypeError, "a coroutine was expected, got 5"),
    "sleep(None)": (lambda ctx: ctx.sleep(None), ValueError, LENGTH.format(None)),
    "sleep('5')": (lambda ctx: ctx.sleep("5"), ValueError, LENGTH.format("'5'")),
    "sleep(nan)": (lambda ctx: ctx.sleep(float("nan")), ValueError, LENGTH.format("nan")),
    "sleep(9e11)": (lambda ctx: ctx.sleep(9e11), ValueError, LENGTH.format("900000000000.0")),
    "asyncio.sleep(inf)": (lambda ctx: asyncio.sleep(float("inf")), ValueError, LENGTH.format("inf")),
    "asyncio.sleep(nan)": (lambda ctx: asyncio.sleep(float("nan")), ValueError, LENGTH.format("nan")),
    "sleep_until(naive)": (
        lambda ctx: ctx.sleep_until(NAIVE),
        ValueError,
        "sleep_until needs an aware datetime, got 2030-01-01T00:00:00 without a time zone",
    ),
    "sleep_until(None)": (
        lambda ctx: ctx.sleep_until(None),
        TypeError,
        "sleep_until needs an aware datetime, got None",
    ),
    "sleep_until(5)": (lambda ctx: ctx.sleep_until(5), TypeError, "sleep_until needs an aware datetime, got 5"),
    "listen()": (lambda ctx: ctx.listen(), ValueError, "listen: signal names must be non-empty strings, got ()"),
    "listen(5)": (lambda ctx: ctx.listen(5), ValueError, "listen: signal names must be non-empty strings, got (5,)"),
    "listen('')": (lambda ctx: ctx.listen(""), ValueError, "listen: signal names must be non-empty strings, got ('',)"),
    "listen(timeout='a')": (lambda ctx: ctx.listen("x", timeout="a"), ValueError, LENGTH.format("'a'")),
    "race()": (lambda ctx: ctx.race(), ValueError, "ctx.race needs at least one competitor"),
    "race(5)": (lambda ctx: ctx.race(5), TypeError, "awaitable is required"),
    "activity(None)": (lambda ctx: ctx.activity(None), errors.DefinitionError, "None is not an activity; decorate it"),
    "activity(5)": (lambda ctx: ctx.activity(5), errors.DefinitionError, "5 is not an activity; decorate it"),
    "activity(partial)": (
        lambda ctx: ctx.activity(functools.partial(echo, "x")),
        errors.DefinitionError,
        "functools.partial(<activity 'echo'>, 'x') is not an activity",
    ),
    "activity(workflow)": (
        lambda ctx: ctx.activity(listens),
        errors.DefinitionError,
        "<workflow 'listens'> is not an activity",
    ),
    "options(timeout=-1)": (
        lambda ctx: ctx.activity(echo.options(timeout=-1), "a"),
        ValueError,
        "timeout must be more than 0, got -1",
    ),
    "options(queue=5)": (
        lambda ctx: ctx.activity(echo.options(queue=5), "a"),
        errors.DefinitionError,
        "queue must be a non-empty string, got 5",
    ),
    "options(retry=5)": (
        lambda ctx: ctx.activity(echo.options(retry=5), "a"),
        errors.DefinitionError,
        "retry must be a RetryPolicy, got 5",
    ),
    "until(durable)": (
        lambda ctx: ctx.until(lambda: ctx.sleep(1)),
        errors.NotDeterministic,
        "a durable call (Timer) inside the predicate of ctx.until; make it before, and pass on its result",
    ),
}


@registry.workflow
async def calls(ctx: Context, name: str) -> list[str]:
    made, kind, _ = CALLS[name]
    try:
        answer = made(ctx)
        if answer is not None:
            await answer
    except kind as error:
        return [type(error).__name__, str(error)]
    return ["nothing was raised", ""]


@pytest.mark.parametrize("name", CALLS)
async def test_a_wrong_argument_is_refused_where_the_call_is_made(name):
    """The code can catch the error, and the history that it leaves can be read back and replayed."""
    _, kind, text = CALLS[name]
    async with Environment(registry=registry) as env:
        handle = await env.start(calls, name)
        answer = await env.finish(handle.result())
        lines = [entry.to_json() for entry in await handle.history()]
    report = await replay(calls, lines)

    assert answer[0] == kind.__name__
    assert text in answer[1]
    assert report.diverged is None
    assert report.result == answer


@registry.activity
async def double(number: int) -> int:
    return 2 * number


async def once(ctx: Context, state: object) -> Break[int]:
    return Break(1)


def not_async(ctx: Context, state: object) -> Break[int]:
    return Break(1)


WRONG = {
    "v(True)": (
        lambda ctx: ctx.v(True).activity(double, 1),
        "ctx.v: version must be a whole number, at least 1, got True",
    ),
    "check_version(True)": (
        lambda ctx: ctx.check_version(True),
        "check_version: version must be a whole number, at least 1, got True",
    ),
    "a version's name": (
        lambda ctx: ctx.check_version(2, name=3),
        "check_version: name must be a non-empty string, got 3",
    ),
    "forget_every": (
        lambda ctx: ctx.loop(once, forget_every=True),
        "forget_every must be None or a whole number, at least 1, got True",
    ),
    "keep_forgotten": (
        lambda ctx: ctx.loop(once, keep_forgotten=False),
        "keep_forgotten must be a whole number, at least 0, got False",
    ),
    "limit": (
        lambda ctx: ctx.map(double, [1], limit=True),
        "limit must be None or a whole number, at least 1, got True",
    ),
    "a removed branch": (
        lambda ctx: ctx.removed.branch(3),
        "ctx.removed.branch: name must be a non-empty string, got 3",
    ),
    "a removed listener": (
        lambda ctx: ctx.removed.listen(3),
        "ctx.removed.listen: name must be a non-empty string, got 3",
    ),
    "a removed check": (
        lambda ctx: ctx.removed.check_version(3),
        "ctx.removed.check_version: name must be a non-empty string, got 3",
    ),
    "a body that is not async": (lambda ctx: ctx.loop(not_async), "is not async; write async def"),
    "a map by name": (
        lambda ctx: ctx.map("double", [1]),
        "ctx.map needs an activity or an async function of (ctx, item), got 'double'",
    ),
    "a map of nothing": (
        lambda ctx: ctx.map(None, [1]),
        "ctx.map needs an activity or an async function of (ctx, item), got None",
    ),
    "a key by name": (lambda ctx: ctx.map(double, [1], key="id"), "key must be a function of an item, got 'id'"),
}


@registry.workflow
async def wrong(ctx: Context, what: str) -> None:
    await WRONG[what][0](ctx)


@pytest.mark.parametrize("what", WRONG)
async def test_a_wrong_argument_of_versions_and_loops_fails_the_run(what):
    """The history can be read afterwards."""
    async with Environment(store="sqlite://", registry=registry) as env:
        handle = await env.start(wrong, what)
        with pytest.raises(errors.WorkflowFailed) as failed:
            await handle.result()
        assert WRONG[what][1] in str(failed.value)
        await handle.history()  # can be read


async def test_a_call_with_arguments_that_cannot_be_encoded_takes_no_location_on_replay_either():
    """The code goes on with another call, of the same activity; replay must not give it the answer at the first."""
    registry = Registry()

    @registry.activity
    async def double(number: int) -> int:
        return 2 * number

    @registry.workflow
    async def retry_by_hand(ctx: Context) -> list[int]:
        seen = []
        for given in (object(), 1, "2", 3):
            try:
                seen.append(await ctx.activity(double, given))  # type: ignore[arg-type]
            except errors.SerializationError:
                seen.append(0)
        return seen

    async with Environment(registry=registry) as env:
        handle = await env.start(retry_by_hand)
        assert await env.finish(handle.result()) == [0, 2, 0, 6]
        report = await replay(retry_by_hand, await handle.history())
    assert report.diverged is None
    assert report.new == ()
