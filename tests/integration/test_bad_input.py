"""Bad input: one clear error that names what and where, and the worker goes on serving the others."""

import asyncio
import threading

import pytest

from resurgam import Context, Engine, Registry, RetryPolicy, errors
from resurgam.store.memory.store import MemoryStore
from resurgam.testing import Environment, ManualClock

registry = Registry()
once = RetryPolicy(max_attempts=1)


@registry.activity(retry=once)
async def echo(value: int) -> int:
    return value


@registry.activity(retry=once)
async def opaque() -> object:
    return object()


class Awkward(Exception):
    def __init__(self, code: int, lock: object) -> None:
        super().__init__(f"code {code}")
        self.code, self.lock = code, lock


@registry.activity(retry=once)
async def awkward() -> None:
    raise Awkward(3, threading.Lock())


@registry.workflow
async def fine(ctx: Context, value: int) -> int:
    return await ctx.activity(echo, value)


@registry.workflow
async def calls(ctx: Context, what: str, args: list[object]) -> object:
    return await ctx.activity(what, *args)


@registry.workflow
async def option(ctx: Context, name: str) -> None:
    await ctx.activity(echo, 1, **{name: 5})  # type: ignore[arg-type]


@registry.workflow
async def undecorated(ctx: Context) -> None:
    await ctx.activity(print)  # type: ignore[arg-type]


@registry.workflow
async def unwritable(ctx: Context) -> object:
    return {"deep": [object()]}


@registry.workflow
async def wrong_type(ctx: Context) -> None:
    await ctx.activity(echo, "three")  # type: ignore[arg-type]


@registry.workflow
async def naive(ctx: Context) -> None:
    from datetime import datetime

    await ctx.sleep_until(datetime.fromisoformat("2030-01-01"))


@registry.workflow
async def race_of_none(ctx: Context) -> None:
    await ctx.race()


FAILURES = [
    (calls, ("nope", []), "activity 'nope' is not registered here (registered: awkward, echo, opaque)"),
    (calls, ("echo", []), "missing a required argument: 'value'"),
    (calls, ("echo", [1, 2]), "too many positional arguments"),
    (calls, ("echo", ["three"]), "activity 'echo', argument 'value': Expected int, got str"),
    (calls, ("opaque", []), "result of activity 'opaque': values of type object cannot be written"),
    (calls, ("awkward", []), "Awkward: code 3"),
    *(
        (option, (name,), f"no parameter '{name}'; for the option write ctx.activity(echo.options({name}=5), ...)")
        for name in ("timeout", "start_timeout", "heartbeat_timeout")
    ),
    (undecorated, (), "is not an activity; decorate it with @activity"),
    (unwritable, (), "result of workflow 'unwritable'['deep'][0]: values of type object cannot be written"),
    (wrong_type, (), "activity 'echo', argument 'value': Expected int, got str"),
    (naive, (), "sleep_until needs an aware datetime, got 2030"),
    (race_of_none, (), "ctx.race needs at least one competitor"),
]


@pytest.mark.parametrize(("workflow", "args", "text"), FAILURES, ids=[text[:40] for *_, text in FAILURES])
async def test_a_workflow_that_goes_wrong_fails_clearly_and_the_worker_goes_on(workflow, args, text, caplog):
    async with Environment(registry=registry) as env:
        handle = await env.start(workflow, *args)
        with pytest.raises(errors.WorkflowFailed) as found:
            await env.finish(handle.result())
        after = await env.finish(env.engine.execute(fine, 5))

    assert text in str(found.value)
    assert after == 5


async def test_an_exception_with_an_unpicklable_field_keeps_the_others_and_says_what_is_lost():
    async with Environment(registry=registry) as env:
        handle = await env.start(calls, "awkward", [])
        with pytest.raises(errors.WorkflowFailed) as found:
            await env.finish(handle.result())

    failed = found.value.cause
    assert isinstance(failed, errors.ActivityFailed)
    assert isinstance(failed.cause, Awkward)
    assert failed.cause.code == 3
    assert "(field 'lock' of type lock could not be recorded)" in failed.cause.__notes__


@pytest.mark.parametrize(
    ("args", "kind", "text"),
    [
        (("nope",), errors.NotFound, "workflow 'nope' is not registered here"),
        (
            (fine,),
            errors.DefinitionError,
            "workflow 'fine': missing a required argument: 'value'; its signature is (value: int)",
        ),
        ((fine, 1, 2), errors.DefinitionError, "too many positional arguments"),
        ((fine, "x"), errors.SerializationError, "workflow 'fine', argument 'value': Expected int, got str"),
        ((print,), errors.DefinitionError, "is not a workflow; decorate it with @workflow"),
        ((None,), errors.DefinitionError, "is not a workflow"),
    ],
)
async def test_a_start_that_cannot_be_is_refused_at_once(args, kind, text):
    async with Engine(registry=registry) as engine:
        with pytest.raises(kind) as found:
            await engine.start(*args)
        page = await engine.list()

    assert text in str(found.value)
    assert page.instances == ()


async def test_an_id_in_use_is_refused_and_can_be_attached_to():
    patient = Registry()

    @patient.workflow
    async def waits(ctx: Context) -> int:
        return await ctx.listen("go", type=int)

    async with Environment(registry=patient) as env:
        first = await env.engine.start(waits, id="x")

        with pytest.raises(errors.AlreadyExists, match=r"'x' is in use by an open execution of 'waits' .running."):
            await env.engine.start(waits, id="x")

        second = await env.engine.start(waits, id="x", if_exists="attach")
        assert second.run_id == first.run_id
        await first.signal("go", 1)
        assert await env.finish(second.result()) == 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"id": ""}, "id must be a non-empty string, got ''"),
        ({"id": 7}, "id must be a non-empty string, got 7"),
        ({"id": "a\0b"}, r"id must not contain NUL, which Postgres cannot store, got 'a\\x00b'"),
        ({"if_exists": "maybe"}, "if_exists must be 'error', 'attach' or 'replace', got 'maybe'"),
        ({"tags": {"a": 1}}, "names and values of tags must be strings"),
    ],
)
async def test_options_that_make_no_sense_are_refused(options, text):
    async with Engine(registry=registry) as engine:
        with pytest.raises((ValueError, TypeError), match=text):
            await engine.start(fine, 1, **options)


async def test_unknown_ids_are_not_found():
    async with Engine(registry=registry) as engine:
        handle = engine.handle("unknown")
        for call in (handle.result, handle.describe, handle.history, handle.cancel):
            with pytest.raises(errors.NotFound, match="there is no workflow with id 'unknown'"):
                await call()
        with pytest.raises(errors.NotFound, match="no workflow with id 'unknown' and run 'r'"):
            await engine.handle("unknown", "r").signal("x")
        with pytest.raises(errors.StoreError, match=r"await handle\.describe"):
            _ = handle.execution_id


async def test_signals_need_a_name_and_a_value_that_can_be_written():
    async with Engine(registry=registry) as engine:
        handle = await engine.start(calls, "echo", [1])
        with pytest.raises(ValueError, match="signal name must be"):
            await handle.signal("")
        with pytest.raises(errors.SerializationError, match="signal 'x'"):
            await handle.signal("x", object())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"queues": "default"}, "queues must be a list of names"),
        ({"queues": ()}, "queues must be a list of names"),
        ({"max_activities": 0}, "max_activities must be at least 1"),
        ({"lease": 0}, "lease longer than 0"),
    ],
)
def test_an_engine_that_cannot_work_is_refused(options, text):
    with pytest.raises(ValueError, match=text):
        Engine(**options)


@pytest.mark.parametrize("url", ["mysql://x", "memory", "", "memory://host"])
async def test_an_unknown_store_is_named(url):
    with pytest.raises(errors.StoreError, match="no store for"):
        async with Engine(url):
            pass


async def test_an_engine_is_used_while_it_is_open():
    engine = Engine(registry=registry)
    with pytest.raises(errors.StoreError, match="not open; use it inside"):
        await engine.start(fine, 1)
    async with engine:
        with pytest.raises(errors.StoreError, match="already open"):
            await engine.__aenter__()


async def test_a_page_needs_a_limit_and_a_status_that_exists():
    async with Engine(registry=registry) as engine:
        with pytest.raises(ValueError, match="limit must be a whole number, at least 1, got 0"):
            await engine.list(limit=0)
        with pytest.raises(ValueError, match=r"status must be one of scheduled, running.*, got 'gone'"):
            await engine.list(status="gone")


async def test_a_result_that_does_not_come_in_time_says_what_it_waits_for():
    @registry.workflow
    async def waiting(ctx: Context) -> None:
        await asyncio.gather(ctx.listen("go"), ctx.sleep(60), ctx.activity(echo.options(queue="gpu"), 1))

    async with Environment(registry=registry) as env:
        handle = await env.start(waiting, id="w")

        with pytest.raises(errors.ResultTimeout) as found:
            await handle.result(timeout=0)

    assert "no result of workflow 'w' within 0: it is running and waits for signal 'go' at {1}" in str(found.value)
    assert "activity 'echo' on queue 'gpu' at {3}" in str(found.value)


async def test_a_workflow_that_no_worker_knows_is_parked_and_taken_up_by_one_that_does():
    clock = ManualClock()
    store = MemoryStore(clock)
    async with Environment(store=store, clock=clock, registry=Registry()) as ignorant:
        async with Engine(store, clock=clock, registry=registry, worker=False) as client:
            handle = await client.start(fine, 4, id="f")
        await ignorant.settle()
        parked = await ignorant.engine.handle("f").describe()
    async with Environment(store=store, clock=clock, registry=registry) as knowing:
        result = await knowing.finish(knowing.engine.handle("f").result())

    assert handle.entity_id == "f"
    assert parked.status == "diverged"
    assert "workflow 'fine' is not registered here" in str(parked.error)
    assert result == 4


async def test_a_terminated_workflow_says_so_and_its_code_hears_nothing():
    heard: list[str] = []

    @registry.workflow
    async def stubborn(ctx: Context) -> None:
        try:
            await ctx.listen("never")
        finally:
            heard.append(str(ctx.get("k")))

    async with Environment(registry=registry) as env:
        handle = await env.start(stubborn, id="t")
        await handle.terminate("enough of it")
        with pytest.raises(errors.WorkflowTerminated, match=r"workflow 'stubborn' .t. was terminated: enough of it"):
            await handle.result()
        await env.settle()
        history = [event.type for event in await handle.history()]
        found = await handle.describe()
        with pytest.raises(errors.NotFound, match=r"is closed .terminated."):
            await handle.signal("never")

    assert history == ["workflow_started", "listen_started", "workflow_terminated", "workflow_deactivated"]
    assert (found.status, found.deactivated) == ("terminated", True)


async def test_only_dead_letters_can_be_retried():
    async with Environment(registry=registry) as env:
        handle = await env.start(fine, 1)

        with pytest.raises(errors.StoreError, match="has nothing to retry"):
            await handle.retry()


async def test_a_dead_letter_goes_on_when_it_is_retried():
    clock = ManualClock()
    store = MemoryStore(clock)
    async with Engine(store, clock=clock, registry=registry, worker=False) as client:
        handle = await client.start(fine, 4, id="f")
        for _ in range(21):
            await store.claim("lost", ["default"], 1)
            clock.move_to(clock.now() + 10_000)
        aside = await handle.describe()
        revived = await handle.retry()
    async with Environment(store=store, clock=clock, registry=registry) as env:
        result = await env.finish(env.engine.handle("f").result())

    assert str(aside.error) == "handed out 20 times without a commit"
    assert (revived, result) == (1, 4)
