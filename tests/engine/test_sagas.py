"""Sagas take back what they did, the last first, whatever interrupts them."""

import asyncio
from typing import Any

import pytest

from resurgam import activity
from resurgam.core import errors
from resurgam.core import event as events
from resurgam.core.retry import RetryPolicy
from resurgam.core.state import Status
from resurgam.runtime.context.context import Context
from resurgam.runtime.context.durable_loop import Break, Continue
from resurgam.runtime.registry import Registry
from resurgam.testing.contract.bench import raises
from resurgam.testing.crash import crash_everywhere
from support.engines import Engines, complaints, run

TWICE = RetryPolicy(max_attempts=2, initial_interval=1, jitter=0)


class Shop:
    """Activities that book and cancel things, and note each attempt of theirs, with its idempotency key."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.done: list[str] = []
        self.keys: list[str] = []
        self.broken: set[str] = set()
        self.slow: set[str] = set()

        async def note(what: str) -> None:
            self.done.append(what)
            self.keys.append(self.registry.activity.info().idempotency_key)
            if what in self.slow:
                await asyncio.Event().wait()
            if what in self.broken:
                raise LookupError(f"cannot {what}")

        @self.registry.activity(retry=TWICE)
        async def book(name: str) -> str:
            await note(f"book {name}")
            return f"<{name}>"

        @self.registry.activity(retry=TWICE)
        async def cancel(booking: str | None) -> None:
            await note(f"cancel {booking}")

        self.book, self.cancel = book, cancel


async def outcomes(handle: Any) -> list[tuple[str, str]]:
    """Return what became of each step of a run's sagas, in the order in which it was written down."""
    history = await handle.history()
    steps = {entry.seq: entry for entry in history if isinstance(entry, events.SagaStepRegistered)}
    return [
        (str(steps[entry.ref].location), entry.outcome) for entry in history if isinstance(entry, events.SagaClosed)
    ]


async def test_a_saga_that_succeeds_is_not_compensated(engines: Engines) -> None:
    """Each step is registered before it is done, in one place of its own, and closed in the end."""
    shop = Shop()

    @shop.registry.workflow
    async def trip(ctx: Context) -> list[str]:
        async with ctx.saga() as saga:
            return [await saga.step(shop.book, name, undo=shop.cancel) for name in ("car", "room")]

    async with engines.open(shop.registry) as env:
        handle = await env.start(trip)
        assert await env.finish(handle.result()) == ["<car>", "<room>"]
        assert shop.done == ["book car", "book room"]
        assert await outcomes(handle) == [("{1}", "completed"), ("{2}", "completed")]
        history = await handle.history()
        places = [(entry.type, str(entry.location)) for entry in history if isinstance(entry, events.Command)]
        assert places == [
            *(("saga_step_registered", "{1}"), ("activity_scheduled", "{1, 1, 1}")),
            *(("saga_step_registered", "{2}"), ("activity_scheduled", "{2, 1, 1}")),
        ]


async def test_a_failed_saga_is_compensated(engines: Engines) -> None:
    """The last first, with what each gave; what failed is not, and the error is the workflow's."""
    shop = Shop()
    shop.broken = {"book flight"}

    @shop.registry.workflow
    async def trip(ctx: Context) -> None:
        async with ctx.saga() as saga:
            for name in ("car", "room", "flight", "meal"):
                await saga.step(shop.book, name, undo=shop.cancel if name != "car" else None)

    async with engines.open(shop.registry) as env:
        handle = await env.start(trip)
        with raises(errors.WorkflowFailed, "cannot book flight") as caught:
            await env.finish(handle.result())
        assert isinstance(caught[0].__cause__, errors.ActivityFailed)
        assert shop.done == ["book car", "book room", "book flight", "book flight", "cancel <room>"]
        assert len(set(shop.keys)) == 4
        assert await outcomes(handle) == [("{3}", "skipped"), ("{2}", "compensated"), ("{1}", "completed")]
        history = await handle.history()
        assert [str(e.location) for e in history if isinstance(e, events.ActivityScheduled)][-1] == "{2, 2, 1}"


async def test_a_step_with_an_unknown_outcome_is_compensated_on_request(engines: Engines) -> None:
    """With undo_on_unknown what failed is taken back too, with None for what it gave."""
    shop = Shop()
    shop.broken = {"book car"}

    @shop.registry.workflow
    async def trip(ctx: Context) -> None:
        async with ctx.saga() as saga:
            await saga.step(shop.book, "car", undo=shop.cancel, undo_on_unknown=True)

    async with engines.open(shop.registry) as env:
        handle = await env.start(trip)
        with raises(errors.WorkflowFailed):
            await env.finish(handle.result())
        assert shop.done == ["book car", "book car", "cancel None"]
        assert await outcomes(handle) == [("{1}", "compensated")]


async def test_a_compensation_that_fails_is_left_visibly(engines: Engines) -> None:
    """It is retried by its own policy; then history, log and error say so, and the rest is taken back."""
    shop = Shop()
    shop.broken = {"cancel <room>"}

    @shop.registry.workflow
    async def trip(ctx: Context) -> None:
        async with ctx.saga() as saga:
            for name in ("car", "room"):
                await saga.step(shop.book, name, undo=shop.cancel)
            raise ValueError("no flight")

    async with engines.open(shop.registry) as env:
        with complaints("resurgam.runtime") as said:
            handle = await env.start(trip)
            waits = (await handle.describe()).waiting_for
            assert any("compensation 'cancel' of saga step 'book' at {2}" in text for text in waits), waits
            with raises(errors.WorkflowFailed, "no flight") as caught:
                await env.finish(handle.result())
        assert shop.done == ["book car", "book room", "cancel <room>", "cancel <room>", "cancel <car>"]
        assert await outcomes(handle) == [("{2}", "failed"), ("{1}", "compensated")]
        assert len([text for text in said if "could not be compensated by 'cancel'" in text]) == 1
        notes = getattr(caught[0].__cause__, "__notes__", [])
        assert any("at {2} was not compensated" in note for note in notes), notes


async def test_a_compensation_that_cannot_even_be_asked_for_is_left_visibly(engines: Engines) -> None:
    """One that does not take what the step gave fails by itself, and the rest is taken back."""
    shop = Shop()

    @shop.registry.activity
    async def cancel_number(booking: int) -> None:
        shop.done.append("never")

    @shop.registry.workflow
    async def trip(ctx: Context) -> None:
        undo: Any = cancel_number
        async with ctx.saga() as saga:
            await saga.step(shop.book, "car", undo=shop.cancel)
            await saga.step(shop.book, "room", undo=undo)
            raise ValueError("no flight")

    async with engines.open(shop.registry) as env:
        handle = await env.start(trip)
        with raises(errors.WorkflowFailed, "no flight"):
            await env.finish(handle.result())
        assert shop.done == ["book car", "book room", "cancel <car>"]
        assert await outcomes(handle) == [("{2}", "failed"), ("{1}", "compensated")]


async def test_every_step_that_ran_can_be_compensated(engines: Engines) -> None:
    """A result as large as is allowed is no larger than what undo may be given."""
    shop = Shop()
    name = "x" * 996

    @shop.registry.workflow
    async def trip(ctx: Context) -> None:
        async with ctx.saga() as saga:
            await saga.step(shop.book, name, undo=shop.cancel)
            raise ValueError("no flight")

    async with engines.open(shop.registry, max_payload=1000) as env:
        handle = await env.start(trip)
        with raises(errors.WorkflowFailed, "no flight"):
            await env.finish(handle.result())
        assert shop.done == [f"book {name}", f"cancel <{name}>"]


async def test_a_cancelled_saga_is_compensated(engines: Engines) -> None:
    """By a request to stop in the middle of a step, between steps, and by the workflow's own timeout."""
    for how in ("in a step", "between steps", "timeout"):
        shop = Shop()
        shop.slow = {"book room"} if how == "in a step" else set()

        @shop.registry.workflow(timeout=20 if how == "timeout" else None)
        async def trip(ctx: Context, shop: Any = shop) -> None:
            async with ctx.saga() as saga:
                await saga.step(shop.book, "car", undo=shop.cancel)
                await saga.step(shop.book, "room", undo=shop.cancel)
                await ctx.sleep(60)

        del trip
        async with engines.open(shop.registry) as env:
            handle = await env.start("trip")
            await env.advance(5)
            if how != "timeout":
                await handle.cancel()
            with raises(errors.WorkflowFailed if how == "timeout" else errors.WorkflowCancelled):
                await env.finish(handle.result())
            rest = ["cancel <car>"] if how == "in a step" else ["cancel <room>", "cancel <car>"]
            assert shop.done == ["book car", "book room", *rest], how


async def test_compensation_is_not_cancelled(engines: Engines) -> None:
    """A request to stop, or a timeout, while a saga takes things back does not keep it from that; it is heard after."""
    shop = Shop()
    shop.broken = {"cancel <room>"}

    @shop.registry.workflow(timeout=3)
    async def trip(ctx: Context) -> None:
        cancel = shop.cancel.options(retry=RetryPolicy(max_attempts=3, initial_interval=5, jitter=0))
        async with ctx.saga() as saga:
            for name in ("car", "room"):
                await saga.step(shop.book, name, undo=cancel)
            raise ValueError("no flight")

    async with engines.open(shop.registry) as env:
        handle = await env.start(trip)
        for _ in range(2):
            await handle.cancel()
            await env.advance(2)
        shop.broken = set()
        with raises(errors.WorkflowFailed, "within its timeout"):
            await env.finish(handle.result())
        assert shop.done == ["book car", "book room", "cancel <room>", "cancel <room>", "cancel <car>"]
        assert await outcomes(handle) == [("{2}", "compensated"), ("{1}", "compensated")]


async def test_sagas_stand_within_sagas(engines: Engines) -> None:
    """What an inner one completed is part of the outer one; what failed inside and was caught is not."""
    shop = Shop()
    shop.broken = {"book boat"}

    @shop.registry.workflow
    async def trip(ctx: Context) -> None:
        async with ctx.saga() as outer:
            await outer.step(shop.book, "car", undo=shop.cancel)
            async with ctx.saga() as inner:
                await inner.step(shop.book, "room", undo=shop.cancel)
                await inner.step(shop.book, "meal", undo=shop.cancel)
            try:
                async with ctx.saga() as other:
                    await other.step(shop.book, "map", undo=shop.cancel)
                    await other.step(shop.book, "boat", undo=shop.cancel)
            except errors.ActivityFailed:
                await outer.step(shop.book, "bus", undo=shop.cancel)
            raise ValueError("no flight")

    async with engines.open(shop.registry) as env:
        handle = await env.start(trip)
        with raises(errors.WorkflowFailed, "no flight"):
            await env.finish(handle.result())
        assert [what for what in shop.done if "cancel" in what] == [
            *("cancel <map>", "cancel <bus>", "cancel <meal>", "cancel <room>", "cancel <car>"),
        ]


async def test_concurrent_steps_are_compensated_once_they_have_ended(engines: Engines) -> None:
    """One that is still at work when another fails is waited for: what it does must not be left behind."""
    shop = Shop()
    shop.broken = {"book room"}
    gate = asyncio.Event()

    @shop.registry.activity
    async def book_slowly(name: str) -> str:
        await gate.wait()
        return f"<{name}>"

    @shop.registry.workflow
    async def trip(ctx: Context) -> None:
        async with ctx.saga() as saga:
            await asyncio.gather(
                saga.step(book_slowly, "car", undo=shop.cancel), saga.step(shop.book, "room", undo=shop.cancel)
            )

    async with engines.open(shop.registry) as env:
        handle = await env.start(trip)
        await env.advance(5)
        assert (await handle.describe()).status is Status.RUNNING
        gate.set()
        with raises(errors.WorkflowFailed, "cannot book room"):
            await env.finish(handle.result())
        assert shop.done == ["book room", "book room", "cancel <car>"]


async def test_waiting_for_a_step_can_be_cancelled(engines: Engines) -> None:
    """A request to stop ends the waiting for a step that may never end, and the rest is taken back."""
    shop = Shop()
    shop.broken, shop.slow = {"book room"}, {"book boat"}

    @shop.registry.workflow
    async def trip(ctx: Context) -> None:
        async with ctx.saga() as saga:
            await saga.step(shop.book, "car", undo=shop.cancel)
            await asyncio.gather(
                saga.step(shop.book, "boat", undo=shop.cancel, undo_on_unknown=True),
                saga.step(shop.book, "room", undo=shop.cancel),
            )

    async with engines.open(shop.registry) as env:
        handle = await env.start(trip)
        await env.advance(5)
        await handle.cancel()
        with raises(errors.WorkflowFailed, "cannot book room"):
            await env.finish(handle.result())
        assert shop.done[-2:] == ["cancel None", "cancel <car>"]


async def test_a_saga_spans_branches_and_children(engines: Engines) -> None:
    """Steps made in strands of their own belong to the saga around them; a child has sagas of its own."""
    shop = Shop()

    @shop.registry.workflow
    async def part(ctx: Context, name: str) -> None:
        async with ctx.saga() as saga:
            await saga.step(shop.book, name, undo=shop.cancel)
            raise ValueError(f"no {name}")

    @shop.registry.workflow
    async def trip(ctx: Context) -> None:
        async def strand(ctx: Context, name: str) -> None:
            async with ctx.saga() as inner:
                await inner.step(shop.book, name, undo=shop.cancel)

        async with ctx.saga() as saga:
            await saga.step(shop.book, "car", undo=shop.cancel)
            await ctx.branch(strand, "room")
            await ctx.workflow(part, "boat")

    async with engines.open(shop.registry) as env:
        handle = await env.start(trip)
        with raises(errors.WorkflowFailed, "no boat"):
            await env.finish(handle.result())
        assert shop.done == [
            *("book car", "book room", "book boat", "cancel <boat>", "cancel <room>", "cancel <car>"),
        ]


async def test_a_retry_runs_only_compensated_steps_again(engines: Engines) -> None:
    """A completed saga is carried over; a step that was taken back is done anew, under another key."""
    shop = Shop()

    @shop.registry.workflow(retry=RetryPolicy(max_attempts=2, initial_interval=1, jitter=0))
    async def trip(ctx: Context) -> None:
        async with ctx.saga() as saga:
            await saga.step(shop.book, "car", undo=shop.cancel)
        async with ctx.saga() as saga:
            await saga.step(shop.book, "room", undo=shop.cancel)
            if ctx.info.attempt == 1:
                raise ValueError("no flight")

    async with engines.open(shop.registry) as env:
        handle = await env.start(trip)
        await env.finish(handle.result())
        assert shop.done == ["book car", "book room", "cancel <room>", "book room"]
        assert len(set(shop.keys)) == 4


async def test_a_saga_goes_on_after_a_crash_at_any_point(engines: Engines) -> None:
    """Killed after every entry of its history, forward and backward, it asks for the same and ends the same."""
    shop = Shop()

    @shop.registry.workflow
    async def trip(ctx: Context) -> None:
        async with ctx.saga() as outer:
            await outer.step(shop.book, "car", undo=shop.cancel)
            async with ctx.saga() as inner:
                await asyncio.gather(*(inner.step(shop.book, name, undo=shop.cancel) for name in ("a", "b")))
            await ctx.sleep(1)
            raise ValueError("no flight")

    found = await crash_everywhere(trip, mocks={"book": "<x>", "cancel": None}, registry=shop.registry)
    assert found.points > 20
    stop = [events.CancelRequested()]
    found = await crash_everywhere(trip, mocks={"book": "<x>", "cancel": None}, messages=stop, registry=shop.registry)
    assert found.points > 5


async def test_a_saga_around_a_loop_that_forgets_holds_no_saga_of_its_body(engines: Engines) -> None:
    """It could not take back what is forgotten, so it is refused at once; a loop that keeps everything may."""
    shop = Shop()

    @shop.registry.workflow
    async def trip(ctx: Context, forget_every: int | None) -> None:
        async def body(ctx: Context, number: int) -> Continue[int] | Break[None]:
            async with ctx.saga() as inner:
                await inner.step(shop.book, str(number), undo=shop.cancel)
            return Break(None) if number == 3 else Continue(number + 1)

        async with ctx.saga() as outer:
            await outer.step(shop.book, "car", undo=shop.cancel)
            await ctx.loop(body, 1, forget_every=forget_every)
            raise ValueError("no flight")

    async with engines.open(shop.registry) as env:
        for forget_every, text in ((2, "forget_every=None"), (None, "no flight")):
            shop.done.clear()
            handle = await env.start(trip, forget_every)
            with raises(errors.WorkflowFailed, text):
                await env.finish(handle.result())
            taken_back = [what for what in shop.done if "cancel" in what]
            kept = [] if forget_every else ["cancel <3>", "cancel <2>", "cancel <1>"]
            assert taken_back == [*kept, "cancel <car>"]


async def test_evicting_a_run_compensates_nothing(engines: Engines) -> None:
    """Neither eviction, nor the end of a worker, nor a termination is an error of the saga."""
    shop = Shop()

    @shop.registry.workflow
    async def trip(ctx: Context) -> str:
        async with ctx.saga() as saga:
            await saga.step(shop.book, "car", undo=shop.cancel)
            await ctx.listen("go")
        return "gone"

    async with engines.client(shop.registry) as (store, clock, client):
        handle = await client.start(trip)
        other = await client.start(trip)
        for _ in range(3):
            async with engines.serve(store, clock, shop.registry) as env:
                await env.settle()
        await other.terminate("enough")
        async with engines.serve(store, clock, shop.registry) as env:
            await env.settle()
            await handle.signal("go")
            assert await env.finish(handle.result()) == "gone"
        assert shop.done == ["book car", "book car"]


@pytest.mark.parametrize("how", ["cancel", "timeout"])
async def test_a_request_to_stop_during_compensation_takes_effect_after_it(engines: Engines, how: str) -> None:
    """Also if the code has caught the error of the saga and goes on."""
    registry = Registry()

    @registry.activity
    async def book() -> str:
        return "b"

    @registry.activity(retry=RetryPolicy(max_attempts=2, initial_interval=60, jitter=0))
    async def unbook(number: str) -> None:
        if activity.info().attempt == 1:
            raise ValueError("try again")

    @registry.workflow(timeout=30 if how == "timeout" else None)
    async def trip(ctx: Context) -> str:
        try:
            async with ctx.saga() as saga:
                await saga.step(book, undo=unbook)
                raise LookupError("full")
        except LookupError:
            await ctx.sleep(86400)
        return "went on"

    async with engines.open(registry) as env:
        handle = await env.start(trip)
        await env.advance(10)
        if how == "cancel":
            await handle.cancel()
        await env.advance(3600)
        assert (await handle.describe()).status in (Status.CANCELLED, Status.FAILED)


@pytest.mark.parametrize("how", ["cancel", "terminate", "complete"])
async def test_an_open_saga_of_a_handler_is_compensated_or_reported_when_the_workflow_ends(
    engines: Engines, how: str
) -> None:

    registry, booked = Registry(), []

    @registry.activity
    async def book() -> str:
        booked.append("b")
        return "b"

    @registry.activity
    async def unbook(number: str) -> None:
        booked.remove(number)

    @registry.workflow
    async def entity(ctx: Context) -> None:
        @ctx.on_signal("trip")
        async def trip() -> None:
            async with ctx.saga() as saga:
                await saga.step(book, undo=unbook)
                await ctx.sleep(3600)

        await ctx.listen("end")

    async with engines.open(registry) as env:
        handle = await env.start(entity)
        await handle.signal("trip")
        await env.advance(1)
        assert booked
        if how == "complete":
            await handle.signal("end")
        else:
            await getattr(handle, how)()
        await env.advance(7200)
        assert not booked or (await handle.describe()).uncompensated


def trip(registry, ran, *, child=False):
    @registry.activity
    async def book(what: str) -> str:
        ran.append(what)
        return what

    @registry.activity
    async def unbook(what: str) -> None:
        ran.append(f"un{what}")

    return book, unbook


async def test_a_completed_saga_is_not_run_again_after_a_pause(engines: Engines):
    registry, ran = Registry(), []
    book, unbook = trip(registry, ran)

    @registry.workflow
    async def work(ctx: Context) -> str:
        async with ctx.saga() as saga:
            got = await saga.step(book, "hotel", undo=unbook)
        await ctx.listen("go")
        return got

    async with engines.open(registry) as env:
        handle = await env.start(work)
        await handle.pause()
        await env.advance(60)
        await handle.resume()
        await handle.signal("go")
        assert await env.finish(handle.result()) == "hotel"
    assert ran == ["hotel"]


async def test_a_child_has_a_saga_of_its_own(engines: Engines):
    registry, ran = Registry(), []
    book, unbook = trip(registry, ran)

    @registry.workflow
    async def child(ctx: Context) -> None:
        async with ctx.saga() as saga:
            await saga.step(book, "same", undo=unbook)
            raise LookupError("only mine is taken back")

    @registry.workflow
    async def parent(ctx: Context) -> list[str]:
        async with ctx.saga() as saga:
            got = await saga.step(book, "same", undo=unbook)
            below = await asyncio.gather(ctx.workflow(child), return_exceptions=True)
        return [got, type(below[0]).__name__]

    async with engines.open(registry) as env:
        assert await run(env, parent) == ["same", "ChildWorkflowFailed"]
    assert ran == ["same", "same", "unsame"]
