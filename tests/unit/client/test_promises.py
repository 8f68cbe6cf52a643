"""Settling promises from outside: the first counts, and whatever cannot be settled says why."""

import pytest
from msgspec import json

from resurgam import errors
from resurgam.core import event as events
from resurgam.core.failure import rebuild
from support.manual_worker import workerless_engine


async def inbox(worker, entity_id="o-1"):
    return [entry.event for entry in (await worker.take(entity_id)).inbox]


async def test_the_first_settlement_counts_by_id_and_by_name():
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        await worker.promises("o-1", "pay", "p-1")

        assert await engine.resolve("p-1", {"cents": 5}) is True
        assert await engine.resolve("p-1", 6) is False
        assert await handle.resolve("pay", 7) is False
        assert await handle.reject("pay", "late") is False
        [settled] = await inbox(worker)
        assert isinstance(settled, events.PromiseResolved)
        assert (settled.promise_id, json.decode(settled.value)) == ("p-1", {"cents": 5})


async def test_a_promise_is_settled_by_its_name():
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        await worker.promises("o-1", "pay", "p-1")

        assert await engine.handle("o-1", handle.run_id).resolve("pay") is True
        [settled] = await inbox(worker)
        assert settled.promise_id == "p-1"


@pytest.mark.parametrize(
    ("error", "kind"), [("no money", Exception), (ValueError("no money"), ValueError), (KeyError("no money"), KeyError)]
)
async def test_a_promise_is_rejected_with_an_exception_or_a_text(error, kind):
    async with workerless_engine() as (engine, worker):
        await engine.start("sell", id="o-1")
        await worker.promises("o-1", "pay", "p-1")

        assert await engine.reject("p-1", error) is True
        [settled] = await inbox(worker)
        assert isinstance(settled, events.PromiseRejected)
        rebuilt = rebuild(settled.failure)
        assert type(rebuilt) is kind
        assert rebuilt.args == ("no money",)


BAD = [
    (lambda e: e.resolve("p-9", 1), errors.NotFound, "there is no promise with id 'p-9'"),
    (lambda e: e.reject("p-9", "no"), errors.NotFound, "there is no promise with id 'p-9'"),
    (
        lambda e: e.handle("o-1").resolve("ship", 1),
        errors.NotFound,
        "workflow 'o-1' has no promise 'ship'; it has 'pay'",
    ),
    (lambda e: e.handle("o-1").reject("ship", "x"), errors.NotFound, "workflow 'o-1' has no promise 'ship'"),
    (lambda e: e.handle("o-9").resolve("pay", 1), errors.NotFound, "there is no workflow with id 'o-9'"),
    (
        lambda e: e.handle("ended").resolve("pay", 1),
        errors.NotFound,
        "workflow 'ended' has no promise 'pay'; it has none",
    ),
    (lambda e: e.resolve(5, 1), ValueError, "promise id or name must be a non-empty string, got 5"),
    (lambda e: e.handle("o-1").resolve("", 1), ValueError, "promise id or name must be a non-empty string, got ''"),
    (lambda e: e.reject("p-1", 5), TypeError, "promise 'p-1' must be rejected with an exception or a string, got 5"),
    (lambda e: e.resolve("p-1", object()), errors.SerializationError, "promise 'p-1': values of type object cannot"),
    (
        lambda e: e.resolve("p-1", "x" * 9000),
        errors.PayloadTooLarge,
        "promise 'p-1': 9,002 bytes exceed the limit of 5,000",
    ),
    (lambda e: e.reject("p-1", "x" * 9000), errors.PayloadTooLarge, "promise 'p-1', error: "),
]


@pytest.mark.parametrize(("call", "kind", "text"), BAD, ids=[text[:40] for *_, text in BAD])
async def test_what_cannot_be_settled_says_why_and_changes_nothing(call, kind, text):
    async with workerless_engine(max_payload=5000) as (engine, worker):
        await engine.start("sell", id="ended")
        await worker.completes("ended")
        await engine.start("sell", id="o-1")
        await worker.promises("o-1", "pay", "p-1")
        with pytest.raises(kind) as found:
            await call(engine)

        assert text in str(found.value)
        assert await engine.resolve("p-1", 1) is True


async def test_settling_a_promise_after_the_end_of_its_workflow_is_not_the_first():
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        await worker.promises("o-1", "pay", "p-1")
        await handle.terminate()

        assert await engine.resolve("p-1", 1) is False
        assert await handle.resolve("pay", 1) is False
