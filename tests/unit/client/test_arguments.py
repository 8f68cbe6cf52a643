"""Arguments of the engine and of handles: wrong ones are refused before anything is written."""

from datetime import UTC, datetime

import pytest

from resurgam import Context, Engine, Registry, errors
from resurgam.testing import Environment

LENGTH = "a duration must be seconds or a timedelta, got {}"

registry = Registry()

NAIVE = datetime.fromisoformat("2030-01-01")


@registry.workflow
async def listens(ctx: Context) -> str:
    return await ctx.listen("go")


async def test_an_update_with_a_bad_timeout_is_not_sent():
    async with Environment(registry=registry) as env:
        handle = await env.start(listens)
        await env.advance(1)
        before = len(await handle.history())
        with pytest.raises(ValueError, match="timeout"):
            await env.finish(handle.update("one", timeout=-1))
        await env.advance(1)
        assert len(await handle.history()) == before


@pytest.mark.parametrize("verb", ["cancel", "terminate", "pause"])
async def test_a_reason_must_be_a_string(verb):
    async with Environment(registry=registry) as env:
        handle = await env.start(listens)
        await env.advance(1)
        before = await handle.history()
        with pytest.raises((TypeError, ValueError), match="reason"):
            await (handle.pause(reason=5) if verb == "pause" else getattr(handle, verb)(5))  # type: ignore[arg-type]
        assert (await handle.describe()).status == "running"
        assert await handle.history() == before


@pytest.mark.parametrize("options", [{"cursor": "bogus"}, {"tags": ["a"]}, {"status": "bogus"}])
@pytest.mark.parametrize("store", ["memory://", "sqlite://"])
async def test_a_wrong_filter_of_a_list_is_named(options, store):
    (word,) = options
    async with Engine(store, registry=registry, worker=False) as engine:
        await engine.start(listens)
        with pytest.raises((TypeError, ValueError), match=word):
            await engine.list(**options)


async def test_a_wrong_location_is_named():
    async with Environment(registry=registry) as env:
        with pytest.raises((TypeError, ValueError), match="location"):
            await (await env.start(listens)).compensate(5)  # type: ignore[arg-type]


async def test_an_id_that_cannot_be_encoded_is_refused():
    async with Engine("sqlite://", registry=registry, worker=False) as engine:
        with pytest.raises((ValueError, errors.ResurgamError), match="id must be"):
            await engine.start(listens, id="\ud800")


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: Engine(None), TypeError, "url must be the URL of a store, or a store, got None"),
        (lambda: Engine(5), TypeError, "url must be the URL of a store, or a store, got 5"),
        (lambda: Engine(lease=None), ValueError, LENGTH.format(None)),
        (lambda: Engine(grace=-1), ValueError, "grace must be at least 0, got -1"),
        (lambda: Engine(grace="a"), ValueError, LENGTH.format("'a'")),
        (lambda: Engine(queues=[1]), ValueError, "queues must be a list of names, got [1]"),
        (lambda: Engine(queues=[""]), ValueError, "queues must be a list of names, got ['']"),
        (lambda: Engine(registry=5), TypeError, "registry must be a Registry, got 5"),
        (lambda: Engine(max_activities=0), ValueError, "max_activities must be at least 1"),
        (lambda: Engine(cache_size=-1), ValueError, "cache_size at least 0"),
    ],
)
def test_a_wrong_option_of_an_engine_is_refused(make, kind, text):
    """When the engine is made, not when the first run is stuck."""
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
        (lambda e: e.start(listens, tags={"a": 1}), TypeError, "names and values of tags must be strings, got 'a': 1"),
        (
            lambda e: e.start(listens, if_exists="x"),
            ValueError,
            "if_exists must be 'error', 'attach' or 'replace', got 'x'",
        ),
        (lambda e: e.list(since=NAIVE), ValueError, "since must have a time zone"),
        (lambda e: e.list(status="bogus"), ValueError, "status must be one of scheduled"),
        (lambda e: e.list(kind="catalog"), ValueError, "kind must be one of workflow, flow, got 'catalog'"),
        (lambda e: e.list(limit=0), ValueError, "limit must be a whole number, at least 1, got 0"),
        (lambda e: e.handle("x").history(limit=0), ValueError, "limit at least 1, got 0 and 0"),
        (lambda e: e.handle("x").history(after=-1), ValueError, "after must be at least 0"),
        (lambda e: e.handle(None).describe(), errors.NotFound, "there is no workflow with id None"),
    ],
)
async def test_a_wrong_argument_of_an_engine_is_refused(call, kind, text):
    """Nothing is started, and the error names the argument."""
    async with Environment(registry=registry) as env:
        with pytest.raises(kind) as found:
            await call(env.engine)
        page = await env.engine.list()

    assert text in str(found.value)
    assert page.instances == ()


@pytest.mark.parametrize("id", [5, "", b"x"])
async def test_the_id_of_a_signal_must_be_a_string(id):
    """The history could not be read back."""
    async with Environment(registry=registry) as env:
        handle = await env.start(listens)
        with pytest.raises(ValueError, match=f"signal id must be a non-empty string, got {id!r}"):
            await handle.signal("go", 1, id=id)


@pytest.mark.parametrize("timeout", ["x", float("nan")])
async def test_a_timeout_must_be_a_length_of_time(timeout):

    async with Environment(registry=registry) as env:
        handle = await env.start(listens)
        with pytest.raises(ValueError, match="a duration must be"):
            await handle.result(timeout=timeout)


async def test_a_negative_timeout_is_refused():
    async with Environment(registry=registry) as env:
        handle = await env.start(listens)
        with pytest.raises(ValueError, match="timeout must be 0 or more, got -1"):
            await handle.result(timeout=-1)


async def test_a_moment_with_a_time_zone_is_accepted():

    async with Environment(registry=registry) as env:
        page = await env.engine.list(since=NAIVE.replace(tzinfo=UTC))

    assert page.instances == ()
