"""Starting: later, instead of another one, or with a signal; and what is too large to be told."""

from datetime import timedelta

import pytest
from msgspec import Raw

from resurgam import Context, Engine, Registry, Status, errors
from resurgam.testing import Environment
from support.manual_worker import workerless_engine

registry = Registry()


@registry.workflow
async def greets(ctx: Context, name: str = "you") -> str:
    return f"{name}: {await ctx.listen('word', type=str)}"


async def everything(engine):
    """Return all that a store shows of its instances, to see that nothing has changed."""
    page = await engine.list()
    return [(i.entity_id, i.execution_id, i.status, i.last_seq) for i in page.instances]


async def test_a_delayed_start_is_scheduled_until_its_moment():
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1", delay=timedelta(hours=1))
        begins = worker.clock.now() + 3_600_000

        found = await handle.describe()
        assert found.status is Status.SCHEDULED
        assert found.begins_at is not None
        assert found.begins_at.timestamp() * 1000 == begins
        assert found.waiting_for == (f"its start at {found.begins_at.isoformat()}",)
        assert list(await worker.claim()) == []
        await worker.pass_time(3_600_000)
        assert [claim.instance.entity_id for claim in await worker.claim()] == ["o-1"]


async def test_no_delay_at_all_is_a_start_at_once():
    async with workerless_engine() as (engine, worker):
        await engine.start("sell", id="o-1", delay=0)

        assert len(await worker.claim()) == 1


@pytest.mark.parametrize("delay", [-1, timedelta(days=-1), "soon", True, float("nan")])
async def test_a_delay_that_is_none_is_refused_and_nothing_begun(delay):
    async with workerless_engine() as (engine, _):
        with pytest.raises(ValueError, match=r"delay must be 0 or more, got|a duration must be"):
            await engine.start("sell", delay=delay)

        assert await everything(engine) == []


async def test_replace_ends_the_open_execution_and_begins_another_in_one_step():
    async with workerless_engine() as (engine, _):
        first = await engine.start("sell", id="o-1")
        second = await engine.start("sell", id="o-1", if_exists="replace")

        assert second.run_id != first.run_id
        with pytest.raises(
            errors.WorkflowTerminated, match=f"replaced by another start of this id, run {second.run_id}"
        ):
            await first.result(1)
        assert (await second.describe()).status is Status.RUNNING


async def test_replace_without_anything_to_replace_is_a_start():
    async with workerless_engine() as (engine, _):
        handle = await engine.start("sell", id="o-1", if_exists="replace")

        assert (await handle.describe()).status is Status.RUNNING


async def test_an_id_in_use_names_both_ways_out():
    async with workerless_engine() as (engine, _):
        await engine.start("sell", id="o-1")
        with pytest.raises(
            errors.AlreadyExists, match=r"if_exists='attach' to get its handle, if_exists='replace' to terminate it"
        ):
            await engine.start("sell", id="o-1")


async def test_a_signal_with_a_start_finds_the_workflow_that_it_began():
    async with Environment(registry=registry) as env:
        handle = await env.engine.signal_with_start(greets, "Ada", id="g-1", signal="word", value="hello")

        assert await env.finish(handle.result()) == "Ada: hello"


async def test_a_signal_with_a_start_reaches_the_one_that_is_open():
    async with Environment(registry=registry) as env:
        first = await env.start(greets, "Ada", id="g-1")
        second = await env.signal_with_start(greets, "Bob", id="g-1", signal="word", value="hello", tags={"a": "b"})

        assert await env.finish(second.result()) == "Ada: hello"
        assert second.run_id == first.run_id
        assert len((await env.engine.list()).instances) == 1


async def test_a_signal_with_a_start_of_the_same_id_counts_once():
    async with workerless_engine() as (engine, worker):
        for _ in range(2):
            await engine.signal_with_start("sell", id="o-1", signal="word", value=1, signal_id="s-1")
        claim = await worker.take("o-1")

        assert {entry.event.id for entry in claim.inbox} == {"s-1"}


BAD = [
    ({"id": ""}, ValueError, "id must be a non-empty string, got ''"),
    ({"id": None}, ValueError, "id must be a non-empty string, got None"),
    ({"signal": ""}, ValueError, "signal name must be a non-empty string, got ''"),
    ({"signal": 5}, ValueError, "signal name must be a non-empty string, got 5"),
    ({"signal_id": 5}, ValueError, "signal id must be a non-empty string, got 5"),
    ({"queue": 7}, ValueError, "queue must be a non-empty string, got 7"),
    ({"tags": {"a": 1}}, TypeError, "names and values of tags must be strings"),
    ({"value": object()}, errors.SerializationError, "signal 'word': values of type object cannot be written"),
    ({"value": "x" * 200}, errors.PayloadTooLarge, "signal 'word': 202 bytes exceed the limit of 100"),
]


@pytest.mark.parametrize(("options", "kind", "text"), BAD, ids=[text[:30] for *_, text in BAD])
async def test_a_signal_with_a_start_that_makes_no_sense_changes_nothing(options, kind, text):
    async with workerless_engine(max_payload=100) as (engine, _):
        with pytest.raises(kind) as found:
            await engine.signal_with_start("sell", **{"id": "o-1", "signal": "word", **options})

        assert text in str(found.value)
        assert await everything(engine) == []


async def test_arguments_that_are_too_large_are_refused_and_nothing_is_begun():
    async with workerless_engine(registry, max_payload=100) as (engine, _):
        with pytest.raises(errors.PayloadTooLarge) as found:
            await engine.start(greets, "x" * 200)
        with pytest.raises(errors.PayloadTooLarge, match="arguments of workflow 'elsewhere'"):
            await engine.start("elsewhere", "x" * 200)

        assert "arguments of workflow 'greets': 204 bytes exceed the limit of 100" in str(found.value)
        assert (found.value.size, found.value.limit) == (204, 100)
        assert await everything(engine) == []
        await engine.start(greets, "x" * 90)


async def test_a_signal_that_is_too_large_is_refused_and_not_sent():
    async with workerless_engine(max_payload=100) as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        with pytest.raises(errors.PayloadTooLarge, match="signal 'word': 202 bytes"):
            await handle.signal("word", "x" * 200)

        assert (await worker.take("o-1")).inbox == ()


@pytest.mark.parametrize("limit", [0, -5, 1.5, "2 MiB", True, None])
def test_a_limit_that_is_no_number_of_bytes_is_refused(limit):
    with pytest.raises(ValueError, match=r"max_payload must be a number of bytes, at least 1, got"):
        Engine(max_payload=limit)


async def test_by_default_two_mebibytes_may_be_said_at_once():
    async with workerless_engine() as (engine, _):
        handle = await engine.start("sell")
        await handle.signal("word", "x" * (2 * 1024 * 1024 - 2))
        with pytest.raises(errors.PayloadTooLarge, match="exceed the limit of 2,097,152"):
            await handle.signal("word", "x" * (2 * 1024 * 1024 - 1))


async def test_children_are_listed_by_their_parent():
    async with workerless_engine() as (engine, worker):
        await engine.start("sell", id="o-1")
        await worker.starts_child("o-1", "c-1")
        await engine.start("sell", id="o-2")

        assert [i.entity_id for i in (await engine.list(parent="o-1")).instances] == ["c-1"]
        assert (await engine.list(parent="o-2")).instances == ()
        with pytest.raises(ValueError, match="parent must be a non-empty string, got 5"):
            await engine.list(parent=5)


async def test_what_is_published_is_heard_from_the_moment_one_listens():
    from resurgam.core.outcome import Publication

    async with workerless_engine() as (engine, worker):
        await engine.start("sell", id="o-1")
        claim = await worker.take("o-1")
        await worker.committed(claim, publications=(Publication("news", Raw(b'"early"')),), release=False)
        async with engine.subscribe("news") as heard:
            values = [Publication("news", Raw(b"1")), Publication("other", Raw(b"2")), Publication("news", Raw(b"3"))]
            await worker.committed(claim, publications=tuple(values))

            assert [await worker.soon(anext(heard)) for _ in range(2)] == [1, 3]


async def test_a_topic_that_is_no_name_is_refused():
    async with workerless_engine() as (engine, _):
        with pytest.raises(ValueError, match="topic must be a non-empty string, got ''"):
            engine.subscribe("")
