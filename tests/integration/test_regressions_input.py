"""Input that was once taken unchecked: each is refused where it is given, with an error that names it."""

import asyncio
import functools
from datetime import UTC, datetime, timedelta

import pytest

from resurgam import Context, Engine, Location, Registry, RetryAfter, RetryPolicy, errors
from resurgam.testing import Environment, replay

registry = Registry()
NAIVE = datetime.fromisoformat("2030-01-01")
LENGTH = "a duration must be seconds or a timedelta, got {}"


@registry.activity
async def echo(text: str) -> str:
    return text


@registry.workflow
async def listens(ctx: Context) -> str:
    return await ctx.listen("go")


# Calls of the context.


CALLS = {
    "set(5)": (lambda ctx: ctx.set(5, 1), TypeError, "the key of a state is 5; it is a string that is not empty"),
    "set([])": (lambda ctx: ctx.set([], 1), TypeError, "the key of a state is []; it is a string that is not empty"),
    "set(None)": (
        lambda ctx: ctx.set(None, 1),
        TypeError,
        "the key of a state is None; it is a string that is not empty",
    ),
    "clear(7)": (lambda ctx: ctx.clear(7), TypeError, "the key of a state is 7; it is a string that is not empty"),
    "clear(None)": (
        lambda ctx: ctx.clear(None),
        TypeError,
        "the key of a state is None; it is a string that is not empty",
    ),
    "run(name=5)": (lambda ctx: ctx.run(int, name=5), TypeError, "is 5; it must be a string"),
    "branch(name=5)": (lambda ctx: ctx.branch(lambda _: None, name=5), TypeError, "is 5; it must be a string"),
    "branch(5)": (lambda ctx: ctx.branch(lambda _: 5), TypeError, "a coroutine was expected, got 5"),
    "sleep(None)": (lambda ctx: ctx.sleep(None), ValueError, LENGTH.format(None)),
    "sleep('5')": (lambda ctx: ctx.sleep("5"), ValueError, LENGTH.format("'5'")),
    "sleep(nan)": (lambda ctx: ctx.sleep(float("nan")), ValueError, LENGTH.format("nan")),
    "sleep(9e11)": (lambda ctx: ctx.sleep(9e11), ValueError, LENGTH.format("900000000000.0")),
    "asyncio.sleep(inf)": (lambda ctx: asyncio.sleep(float("inf")), ValueError, LENGTH.format("inf")),
    "asyncio.sleep(nan)": (lambda ctx: asyncio.sleep(float("nan")), ValueError, LENGTH.format("nan")),
    "sleep_until(naive)": (lambda ctx: ctx.sleep_until(NAIVE), ValueError, "no time zone; use an aware datetime"),
    "sleep_until(None)": (lambda ctx: ctx.sleep_until(None), TypeError, "sleep_until(None): give an aware datetime"),
    "sleep_until(5)": (lambda ctx: ctx.sleep_until(5), TypeError, "sleep_until(5): give an aware datetime"),
    "listen()": (lambda ctx: ctx.listen(), ValueError, "listen needs the names of the signals, as strings; got ()"),
    "listen(5)": (lambda ctx: ctx.listen(5), ValueError, "listen needs the names of the signals, as strings; got (5,)"),
    "listen('')": (lambda ctx: ctx.listen(""), ValueError, "listen needs the names of the signals, as strings"),
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
        "timeout is -1; it must be more than 0",
    ),
    "options(queue=5)": (
        lambda ctx: ctx.activity(echo.options(queue=5), "a"),
        errors.DefinitionError,
        "queue is 5; it is a name",
    ),
    "options(retry=5)": (
        lambda ctx: ctx.activity(echo.options(retry=5), "a"),
        errors.DefinitionError,
        "retry is 5; it is a RetryPolicy",
    ),
    "until(durable)": (
        lambda ctx: ctx.until(lambda: ctx.sleep(1)),
        errors.NotDeterministic,
        "a durable call (Timer) inside the predicate of ctx.until; make it before, and pass on what it gave",
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
async def test_a_call_of_the_context_that_makes_no_sense_is_refused_where_it_is_made(name):
    """The code can catch the error, and the history that it leaves can be read back and replayed."""
    _, kind, text = CALLS[name]
    async with Environment(registry=registry) as env:
        handle = await env.start(calls, name)
        told = await env.finish(handle.result())
        lines = [entry.to_json() for entry in await handle.history()]
    report = await replay(calls, lines)

    assert told[0] == kind.__name__
    assert text in told[1]
    assert report.diverged is None
    assert report.result == told


# Opening an engine, and asking it.


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: Engine(None), TypeError, "url must be the URL of a store, or a store, got None"),
        (lambda: Engine(5), TypeError, "url must be the URL of a store, or a store, got 5"),
        (lambda: Engine(lease=None), ValueError, LENGTH.format(None)),
        (lambda: Engine(grace=-1), ValueError, "grace is -1; it is 0 or more"),
        (lambda: Engine(grace="a"), ValueError, LENGTH.format("'a'")),
        (lambda: Engine(queues=[1]), ValueError, "queues must be a list of names, got [1]"),
        (lambda: Engine(queues=[""]), ValueError, "queues must be a list of names, got ['']"),
        (lambda: Engine(registry=5), TypeError, "registry must be a Registry, got 5"),
        (lambda: Engine(max_activities=0), ValueError, "max_activities is at least 1"),
        (lambda: Engine(cache_size=-1), ValueError, "cache_size at least 0"),
    ],
)
def test_an_engine_that_cannot_work_is_refused(make, kind, text):
    """It says so when it is made, and not when the first run is stuck."""
    with pytest.raises(kind) as found:
        make()

    assert text in str(found.value)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda e: e.start(None), errors.DefinitionError, "None is not a workflow; decorate it with @workflow"),
        (lambda e: e.start("zzz"), errors.NotFound, "workflow 'zzz' is not registered here"),
        (lambda e: e.start(""), errors.NotFound, "workflow '' is not registered here"),
        (lambda e: e.start(listens, 1), errors.DefinitionError, "too many positional arguments"),
        (lambda e: e.start(listens, id=5), ValueError, "id must be a non-empty string, got 5"),
        (lambda e: e.start(listens, tags=[1]), TypeError, "tags must be a mapping of strings to strings, got [1]"),
        (lambda e: e.start(listens, tags={"a": 1}), TypeError, "tags must be strings by strings, got 'a': 1"),
        (
            lambda e: e.start(listens, if_exists="x"),
            ValueError,
            "if_exists must be 'error', 'attach' or 'replace', got 'x'",
        ),
        (lambda e: e.list(since=NAIVE), ValueError, "since must have a time zone"),
        (lambda e: e.list(status="bogus"), ValueError, "status must be one of scheduled"),
        (lambda e: e.list(limit=0), ValueError, "limit must be a whole number, at least 1, got 0"),
        (lambda e: e.handle(None).describe(), errors.NotFound, "there is no workflow with id None"),
    ],
)
async def test_a_question_that_makes_no_sense_is_refused(call, kind, text):
    """Nothing is begun, and the error names what was given."""
    async with Environment(registry=registry) as env:
        with pytest.raises(kind) as found:
            await call(env.engine)
        page = await env.engine.list()

    assert text in str(found.value)
    assert page.instances == ()


@pytest.mark.parametrize("id", [5, "", b"x"])
async def test_a_signal_with_an_id_that_is_no_string_is_refused(id):
    """It would stand in the history as what no reader of that history takes."""
    async with Environment(registry=registry) as env:
        handle = await env.start(listens)
        with pytest.raises(ValueError, match=f"signal id must be a non-empty string, got {id!r}"):
            await handle.signal("go", 1, id=id)


async def test_a_reason_that_is_no_string_is_refused():
    """It would be written into a history that nobody could read back."""
    async with Environment(registry=registry) as env:
        handle = await env.start(listens)
        with pytest.raises(TypeError, match="reason must be a string, got 5"):
            await handle.cancel(5)
        history = await handle.history()

    assert "cancel_requested" not in [entry.type for entry in history]


@pytest.mark.parametrize("timeout", ["x", float("nan")])
async def test_a_result_is_not_waited_for_for_what_is_no_length_of_time(timeout):
    """It is refused at once."""
    async with Environment(registry=registry) as env:
        handle = await env.start(listens)
        with pytest.raises(ValueError, match="a duration must be"):
            await handle.result(timeout=timeout)


async def test_a_negative_timeout_is_refused():
    async with Environment(registry=registry) as env:
        handle = await env.start(listens)
        with pytest.raises(ValueError, match="timeout must be 0 or more, got -1"):
            await handle.result(timeout=-1)


# Definitions.


class Methods:
    async def method(self, ctx):
        """Is no workflow."""

    @classmethod
    async def of_class(cls, ctx):
        """Is no workflow."""

    async def __call__(self, ctx):
        """Is no workflow."""


async def good(ctx):
    """Is one."""


def plain(ctx):
    """Is an activity at best."""


async def asynchronous_generator(x):
    yield 1


def generator(x):
    yield 1


async def keyword_only(ctx, *, a): ...
async def keywords(ctx, **a): ...
async def without_context(): ...
async def wrong_context(x: int): ...
async def only_star(*a): ...


NO_FUNCTION = "is not a function; {} is a plain function of a module"
DEFINITIONS = [
    (lambda r: r.workflow(5), NO_FUNCTION.format("a workflow")),
    (lambda r: r.workflow(plain), "a workflow is an async function; write async def"),
    (lambda r: r.workflow(functools.partial(good)), NO_FUNCTION.format("a workflow")),
    (lambda r: r.workflow(Methods.method), "(Methods.method): a workflow cannot be a method; define it as a function"),
    (lambda r: r.workflow(Methods().method), NO_FUNCTION.format("a workflow")),
    (lambda r: r.workflow(Methods.of_class), NO_FUNCTION.format("a workflow")),
    (lambda r: r.workflow(Methods()), NO_FUNCTION.format("a workflow")),
    (lambda r: r.workflow(Methods), NO_FUNCTION.format("a workflow")),
    (lambda r: r.workflow(asynchronous_generator), "a workflow cannot be a generator; return a list"),
    (lambda r: r.workflow(name=5)(good), "(good): name is 5; it is a string"),
    (lambda r: r.workflow(name="")(good), "(good): name is ''; it is a string"),
    (lambda r: r.workflow(queue=5)(good), "(good): queue must be a name, got 5"),
    (lambda r: r.workflow(r.workflow(good)), "<workflow 'good'> is not a function"),
    (lambda r: r.activity(r.workflow(good)), "<workflow 'good'> is not a function"),
    (lambda r: r.activity(functools.partial(plain)), NO_FUNCTION.format("an activity")),
    (lambda r: r.activity(generator), "(generator): an activity cannot be a generator; return a list"),
    (lambda r: r.activity(asynchronous_generator), "an activity cannot be a generator; return a list"),
    (lambda r: r.activity(Methods.method), "an activity cannot be a method; define it as a function"),
    (lambda r: r.activity(len), "<built-in function len> is not a function"),
    (lambda r: r.activity(retry=5)(plain), "retry is 5; it is a RetryPolicy"),
    (lambda r: r.activity(retry=None)(plain), "retry is None; it is a RetryPolicy"),
    (lambda r: r.activity(queue=5)(plain), "queue is 5; it is a name"),
    (lambda r: r.workflow(keyword_only), "parameter 'a' can only be given by keyword"),
    (lambda r: r.workflow(keywords), "parameter 'a' can only be given by keyword"),
    (lambda r: r.workflow(without_context), "a workflow takes the context as its first parameter: (ctx, ...)"),
    (lambda r: r.workflow(wrong_context), "the first parameter is annotated <class 'int'>, not Context"),
    (lambda r: r.workflow(only_star), "a workflow takes the context as its first parameter: (ctx, ...)"),
]


@pytest.mark.parametrize(("define", "text"), DEFINITIONS, ids=range(len(DEFINITIONS)))
def test_a_definition_that_cannot_work_is_refused(define, text):
    """DefinitionError says where the function stands and what it should be."""
    with pytest.raises(errors.DefinitionError) as found:
        define(Registry())

    assert text in str(found.value)


@pytest.mark.parametrize("timeout", [0, -1, "a", None, timedelta(0)])
def test_a_timeout_of_an_activity_is_a_length_of_time_or_none(timeout):
    """Zero would end every attempt before it began."""
    if timeout is None:
        assert Registry().activity(timeout=None)(plain).settings.timeout is None
        return
    with pytest.raises(ValueError, match=r"must be more than 0|a duration must be"):
        Registry().activity(timeout=timeout)(plain)


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"max_attempts": 0}, ValueError, "max_attempts must be None or at least 1, got 0; it counts all attempts"),
        ({"max_attempts": "3"}, ValueError, "max_attempts must be None or at least 1, got 3; it counts all attempts"),
        ({"max_attempts": 2.5}, ValueError, "max_attempts must be None or at least 1, got 2.5; it counts all attempts"),
        ({"backoff": 0.5}, ValueError, "backoff must be at least 1, got 0.5"),
        ({"backoff": float("nan")}, ValueError, "backoff must be at least 1, got nan"),
        ({"initial_interval": -1}, ValueError, "initial_interval must be at least 0, got -1"),
        ({"jitter": 2}, ValueError, "jitter must be between 0 and 1, got 2"),
        ({"non_retryable": (5,)}, TypeError, "non_retryable must be a list of types or names, got (5,)"),
        (
            {"non_retryable": ValueError},
            TypeError,
            "non_retryable must be a list of types or names, got <class 'ValueError'>",
        ),
        (
            {"non_retryable": "ValueError"},
            TypeError,
            "non_retryable must be a list of types or names, got 'ValueError'",
        ),
        ({"non_retryable": None}, TypeError, "non_retryable must be a list of types or names, got None"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(options, kind, text):
    """The error names the option and what it was."""
    with pytest.raises(kind) as found:
        RetryPolicy(**options)

    assert text in str(found.value)


@pytest.mark.parametrize("pause", [None, "a", float("nan"), 1e300])
def test_a_pause_is_a_length_of_time(pause):
    """RetryAfter refuses what is none when it is made."""
    with pytest.raises(ValueError, match="a duration must be"):
        RetryAfter(pause)


def test_a_pause_that_is_past_is_none_at_all():
    """The next attempt is made at once."""
    assert RetryAfter(-1).pause_ms == 0


@pytest.mark.parametrize("text", ["", "{", "{a}", "{1.}"])
def test_what_is_no_location_is_refused(text):
    """The error shows how one is written."""
    with pytest.raises(ValueError, match=r"a location must be text such as \{2, 1\.1\}, got "):
        Location.parse(text)


async def test_an_aware_moment_is_taken():
    """The check for a time zone refuses nothing that has one."""
    async with Environment(registry=registry) as env:
        page = await env.engine.list(since=NAIVE.replace(tzinfo=UTC))

    assert page.instances == ()
