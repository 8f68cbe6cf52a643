"""What a stranger broke: each test says what the pages promise, and fails."""

import asyncio

import pytest

from resurgam import Context, Engine, NonRetryable, Registry, errors
from resurgam.testing import Environment


@pytest.fixture
def registry():
    return Registry()


def talker(registry):
    """A workflow that listens for 'end', with handlers that go wrong in all ways."""

    @registry.workflow
    async def talk(ctx: Context) -> str:
        @ctx.on_query("exit")
        def leave() -> None:
            raise SystemExit(3)

        @ctx.on_query("fine")
        def fine() -> str:
            return "fine"

        @ctx.on_signal("exit")
        async def leave_too() -> None:
            raise SystemExit(3)

        @ctx.on_update("exit")
        async def leave_as_well() -> None:
            raise SystemExit(3)

        @ctx.on_update("one")
        async def one() -> int:
            return 1

        @ctx.on_update("two")
        async def two() -> int:
            return 2

        await ctx.listen("end")
        return "ended"

    return talk


def test_a_query_whose_handler_exits_leaves_the_worker_alive(registry, tmp_path):
    talk = talker(registry)
    url = f"sqlite:///{tmp_path}/x.db"

    async def main() -> str:
        async with Engine(url, registry=registry), Engine(url, registry=Registry(), worker=False) as client:
            handle = await client.start(talk, id="t")
            with pytest.raises(Exception, match="SystemExit"):
                await handle.query("exit", timeout=2)
            return await handle.query("fine", timeout=2)

    try:
        assert asyncio.run(main()) == "fine"
    except SystemExit:
        pytest.fail("the query ended the process of the worker")


async def test_a_signal_whose_handler_exits_fails_the_workflow(registry):
    """docs/workflow-api.md: what leaves the handler of a signal fails the workflow."""
    talk = talker(registry)
    async with Environment(registry=registry) as env:
        handle = await env.start(talk)
        await handle.signal("exit")
        with pytest.raises(errors.WorkflowFailed):
            await env.finish(handle.result(timeout=60))


async def test_an_update_whose_handler_exits_is_answered(registry):
    talk = talker(registry)
    async with Environment(registry=registry) as env:
        handle = await env.start(talk)
        with pytest.raises(errors.UpdateRejected):
            await env.finish(handle.update("exit", timeout=60))


async def test_a_handler_that_no_signal_could_be_given_to_is_refused(registry):
    """The handler takes two values and a signal has one: the workflow fails where it registers it."""

    @registry.workflow
    async def talk(ctx: Context) -> None:
        @ctx.on_signal("pair")
        def pair(left: int, right: int) -> None: ...

        await ctx.listen("end")

    async with Environment(registry=registry) as env:
        with pytest.raises(errors.WorkflowFailed, match="signal 'pair' brings one value"):
            await env.finish((await env.start(talk)).result())


@pytest.mark.parametrize("kind", ["on_query", "on_update", "on_signal"])
async def test_a_handler_without_its_name_is_refused(registry, kind):
    """`@ctx.on_query` without parentheses registers nothing and says nothing."""

    @registry.workflow
    async def bare(ctx: Context) -> str:
        @getattr(ctx, kind)
        def total() -> int:
            return 1

        return "went on without its handler"

    async with Environment(registry=registry) as env:
        with pytest.raises(errors.WorkflowFailed, match=kind):
            await env.finish((await env.start(bare)).result(timeout=60))


async def test_until_refuses_what_is_no_plain_function(registry):
    """The coroutine of an async predicate is true: `until` is over at once, though the predicate says False."""

    @registry.workflow
    async def waits(ctx: Context) -> str:
        async def ready() -> bool:
            return False

        await ctx.until(ready)  # type: ignore[arg-type]
        return "went on"

    async with Environment(registry=registry) as env:
        with pytest.raises(errors.WorkflowFailed, match="until"):
            await env.finish((await env.start(waits)).result(timeout=60))


async def test_what_was_begun_by_hand_does_not_wait_for_its_start(registry):
    talk = talker(registry)
    async with Engine("memory://", registry=registry, worker=False) as engine:
        handle = await engine.start(talk, delay=1000)
        await handle.begin()
        shown = await handle.describe()
        assert shown.status == "running"
        assert not [what for what in shown.waiting_for if "its start at" in what]


@pytest.mark.parametrize("end", ["terminate", "continue"])
async def test_a_step_that_nobody_took_back_is_shown(registry, end):
    """A saga that was cut off: its step can be compensated by hand, but `uncompensated` does not say so."""

    @registry.activity
    async def book() -> str:
        return "b"

    @registry.activity
    async def unbook(booking: str) -> None: ...

    @registry.workflow
    async def trip(ctx: Context) -> str:
        if ctx.info.generation == 2:
            return "done"
        async with ctx.saga() as saga:
            await saga.step(book, undo=unbook)
            if end == "continue":
                ctx.continue_as_new()
            await ctx.listen("never")
        return "never"

    async with Environment(registry=registry) as env:
        handle = await env.start(trip, id="t")
        run = handle.run_id
        await env.advance(1)
        if end == "terminate":
            await handle.terminate()
        await env.advance(1)
        first = env.engine.handle("t", run)
        assert (await first.describe()).uncompensated


async def test_an_update_with_a_bad_timeout_is_not_sent(registry):
    talk = talker(registry)
    async with Environment(registry=registry) as env:
        handle = await env.start(talk)
        await env.advance(1)
        before = len(await handle.history())
        with pytest.raises(ValueError, match="timeout"):
            await env.finish(handle.update("one", timeout=-1))
        await env.advance(1)
        assert len(await handle.history()) == before


async def test_a_result_is_not_waited_for_a_negative_time(registry):
    talk = talker(registry)
    async with Environment(registry=registry) as env:
        handle = await env.start(talk)
        with pytest.raises(ValueError, match="timeout"):
            await handle.result(timeout=-1)


@pytest.mark.parametrize("verb", ["cancel", "terminate", "pause"])
async def test_a_reason_that_is_no_text_is_refused(registry, verb):
    talk = talker(registry)
    async with Environment(registry=registry) as env:
        handle = await env.start(talk)
        await env.advance(1)
        with pytest.raises((TypeError, ValueError), match="reason"):
            await (handle.pause(reason=5) if verb == "pause" else getattr(handle, verb)(5))  # type: ignore[arg-type]
        assert (await handle.describe()).status == "running"


async def test_the_id_of_an_update_is_not_that_of_another_one(registry):
    """`update("two", id="x")` returns 1, which "one" has returned."""
    talk = talker(registry)
    async with Environment(registry=registry) as env:
        handle = await env.start(talk)
        assert await env.finish(handle.update("one", id="x")) == 1
        with pytest.raises((errors.ResurgamError, ValueError)):
            await env.finish(handle.update("two", id="x"))


@pytest.mark.parametrize("options", [{"cursor": "bogus"}, {"tags": ["a"]}, {"status": "bogus"}])
@pytest.mark.parametrize("store", ["memory://", "sqlite://"])
async def test_a_list_of_nonsense_is_refused_by_name(registry, options, store):
    talk = talker(registry)
    (word,) = options
    async with Engine(store, registry=registry, worker=False) as engine:
        await engine.start(talk)
        with pytest.raises((TypeError, ValueError), match=word):
            await engine.list(**options)


async def test_compensate_names_what_it_was_given(registry):
    talk = talker(registry)
    async with Environment(registry=registry) as env:
        with pytest.raises((TypeError, ValueError), match="location"):
            await (await env.start(talk)).compensate(5)  # type: ignore[arg-type]


async def test_an_id_that_cannot_be_written_is_refused_by_name(registry):
    talk = talker(registry)
    async with Engine("sqlite://", registry=registry, worker=False) as engine:
        with pytest.raises((ValueError, errors.ResurgamError), match="id must be"):
            await engine.start(talk, id="\ud800")


async def test_undo_on_unknown_is_refused_where_it_could_not_be_called(registry):
    """It is called with None when nobody knows what the step gave; an undo that does not take it is found at once."""
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


def parent_of_nobody(registry):
    """A workflow with a timeout, and a child on a queue that no worker serves."""

    @registry.workflow
    async def kid(ctx: Context) -> None: ...

    @registry.workflow(timeout=10)
    async def parent(ctx: Context) -> None:
        await ctx.workflow(kid, id="kid", queue="nobody serves this")

    return parent


async def test_a_timeout_holds_though_a_child_is_not_served(registry):
    """The parent waits for the end of a child that never began, and is still running a day after its ten seconds."""
    parent = parent_of_nobody(registry)
    async with Environment(registry=registry) as env:
        handle = await env.start(parent)
        await env.advance(24 * 3600)
        assert (await handle.describe()).status == "failed"


def test_a_validator_that_exits_does_not_end_every_worker_in_turn(registry, tmp_path):
    """The update stays in the inbox, so that it ends the next worker too, and the one after."""

    @registry.workflow
    async def strict(ctx: Context) -> None:
        def leave() -> None:
            raise SystemExit(3)

        @ctx.on_update("put", validator=leave)
        def put() -> None: ...

        await ctx.listen("end")

    async def ask() -> None:
        async with Engine(f"sqlite:///{tmp_path}/x.db", registry=registry) as engine:
            handle = await engine.start(strict, id="s", if_exists="attach")
            with pytest.raises(errors.UpdateRejected):
                await handle.update("put", id="one", timeout=2)

    try:
        asyncio.run(ask())
    except SystemExit:
        pytest.fail("the validator ended the process of the worker")
