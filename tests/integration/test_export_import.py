"""Workflows that move from one store to another half-way, and what is said of lines that are no export."""

import asyncio
import json
import re
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from resurgam import Break, Context, Continue, Engine, Registry, RetryPolicy, Status
from resurgam.errors import AlreadyExists, NotFound, SerializationError, WorkflowFailed
from resurgam.store.open import open_store
from resurgam.testing import Environment, ManualClock, replay

PAIRS = [("memory", "sqlite"), ("sqlite", "memory"), ("sqlite", "sqlite"), ("memory", "memory")]
registry = Registry()
performed: list[str] = []


@registry.activity
async def reserve(order: str) -> str:
    performed.append("reserve")
    return f"place for {order}"


@registry.activity(queue="bank")
async def charge(order: str) -> str:
    performed.append("charge")
    return f"receipt for {order}"


@registry.activity(retry=RetryPolicy(max_attempts=3, initial_interval=60, jitter=0))
async def ship(order: str) -> str:
    performed.append("ship")
    if performed.count("ship") == 1:
        raise ValueError("no lorry")
    return f"parcel of {order}"


@registry.activity
async def linger(order: str) -> str:
    performed.append("linger")
    if performed.count("linger") == 1:
        await asyncio.Event().wait()
    return "done"


@registry.workflow
async def rounds(ctx: Context, every: int, kept: int) -> int:
    """Ten rounds, and one more after a signal."""

    async def body(ctx: Context, number: int) -> Continue[int] | Break[int]:
        await ctx.activity(reserve, str(number))
        if number == 10:
            await ctx.listen("last")
        return Continue(number + 1) if number < 10 else Break(number + 1)

    return await ctx.loop(body, 0, forget_every=every, keep_forgotten=kept)


@registry.workflow
async def sell(ctx: Context, order: str) -> list[str]:
    """Something done, a timer, an activity and a listener under way at once."""
    place = await ctx.activity(reserve, order)

    async def tomorrow() -> str:
        await ctx.sleep(timedelta(days=1))
        return str(ctx.now().date())

    date, receipt = await asyncio.gather(tomorrow(), ctx.activity(charge, order))
    return [place, date, receipt, await ctx.listen("note", type=str), await ctx.listen("note", type=str)]


@registry.workflow
async def shipping(ctx: Context, order: str) -> str:
    return await ctx.activity(ship, order)


@registry.workflow
async def lingering(ctx: Context, order: str) -> str:
    return await ctx.activity(linger, order)


@registry.workflow
async def lingering_once(ctx: Context, order: str) -> str:
    return await ctx.activity(linger.options(retry=RetryPolicy(max_attempts=1, redeliver=False)), order)


@registry.workflow
async def brief(ctx: Context, order: str) -> str:
    return order


@pytest.fixture(autouse=True)
def _nothing_performed():
    performed.clear()


@pytest.fixture
def clock():
    return ManualClock()


@asynccontextmanager
async def opened(kind, clock):
    """Open a store, and a client of it that serves nothing."""
    store = open_store(f"{kind}://", clock, name="n", lease=10_000)
    try:
        async with Engine(store, registry=registry, clock=clock, worker=False) as client:
            yield client
    finally:
        await store.close()


def serve(client, clock, *queues):
    options = {"queues": queues or ("default",), "patience": 0.05, "grace": 0.01}
    return Environment(store=client.store, registry=registry, clock=clock, **options)


@asynccontextmanager
async def half_way(kind, clock):
    """A sale that has a place, waits for tomorrow and for the bank, and has not heard two notes yet."""
    async with opened(kind, clock) as old:
        async with serve(old, clock) as env:
            await env.start(sell, "o", id="o-1", tags={"shop": "berlin\u2028"})
        for note in ("first", "second"):
            await old.handle("o-1").signal("note", note)
        yield old


def kinds(lines):
    return [json.loads(line)["type"] for line in lines]


@pytest.mark.parametrize(("source", "target"), PAIRS)
async def test_a_workflow_goes_on_in_another_store_exactly_where_it_was(source, target, clock):
    async with half_way(source, clock) as old, opened(target, clock) as new:
        lines = await old.export("o-1")
        begun = await old.handle("o-1").history()

        [arrival] = await new.import_(lines)

        assert (arrival.new, arrival.instance.entity_id, arrival.instance.status) == (True, "o-1", Status.RUNNING)
        assert await new.export("o-1") == lines
        async with serve(new, clock, "default", "bank") as env:
            result = await env.finish(new.handle("o-1").result())
        assert result == ["place for o", "2023-11-15", "receipt for o", "first", "second"]
        assert performed == ["reserve", "charge"]
        history = await new.handle("o-1").history()
        assert history[: len(begun)] == begun
        assert (await replay(sell, history)).result == result


@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize(("every", "kept"), [(20, 100), (4, 100), (4, 3), (1, 0)])
async def test_a_loop_goes_on_though_entries_are_forgotten(source, target, every, kept, clock):
    """Those that are kept for readers move too; those that are deleted are missing in the lines."""
    async with opened(source, clock) as old, opened(target, clock) as new:
        async with serve(old, clock) as env:
            await env.start(rounds, every, kept, id="o-1")
        lines = await old.export("o-1")
        await new.import_(lines)
        assert await new.export("o-1") == lines
        await new.handle("o-1").signal("last")
        async with serve(new, clock) as env:
            assert await env.finish(new.handle("o-1").result()) == 11
        again = await new.export("o-1")
        async with opened(source, clock) as third:
            await third.import_(again)
            assert await third.handle("o-1").history(forgotten=True) == await new.handle("o-1").history(forgotten=True)


@pytest.mark.parametrize(("source", "target"), PAIRS)
async def test_a_retry_keeps_its_pause_and_its_attempt(source, target, clock):
    async with opened(source, clock) as old, opened(target, clock) as new:
        async with serve(old, clock) as env:
            await env.start(shipping, "o", id="o-1")
        await new.import_(await old.export("o-1"))
        async with serve(new, clock) as env:
            await env.advance(59)
            assert performed == ["ship"]
            await env.advance(1)
            assert await new.handle("o-1").result() == "parcel of o"
        [answer] = [event for event in await new.handle("o-1").history() if event.type == "activity_completed"]
        assert (answer.attempt, performed) == (2, ["ship", "ship"])


@pytest.mark.parametrize(("source", "target"), PAIRS)
async def test_an_activity_that_is_running_meanwhile_runs_again(source, target, clock):
    async with opened(source, clock) as old, opened(target, clock) as new, serve(old, clock) as env:
        await env.start(lingering, "o", id="o-1")
        await new.import_(await old.export("o-1"))
        async with serve(new, clock) as other:
            assert await other.finish(new.handle("o-1").result()) == "done"
        assert performed == ["linger", "linger"]
        await old.handle("o-1").terminate()


async def test_an_activity_that_must_not_be_begun_twice_is_not(clock):
    async with opened("memory", clock) as old, opened("sqlite", clock) as new, serve(old, clock) as env:
        await env.start(lingering_once, "o", id="o-1")
        await new.import_(await old.export("o-1"))
        async with serve(new, clock) as other:
            with pytest.raises(WorkflowFailed, match="the worker that ran attempt 1 of activity 'linger' was lost"):
                await other.finish(new.handle("o-1").result())
        assert performed == ["linger"]
        await old.handle("o-1").terminate()


@pytest.mark.parametrize(("source", "target"), PAIRS)
async def test_every_execution_of_an_id_moves_and_the_ended_ones_do_not_run_again(source, target, clock):
    async with opened(source, clock) as old, opened(target, clock) as new:
        async with serve(old, clock) as env:
            for order in ("a", "b", "c"):
                await env.start(brief, order, id="o-1")
                await env.advance(1)
            first = (await old.list()).instances[-1]
        lines = await old.export("o-1")
        one = await old.export("o-1", first.run_id)

        assert [a.instance.run_id for a in await new.import_(one)] == [first.run_id]
        arrivals = await new.import_("\n".join(lines))

        assert [arrival.new for arrival in arrivals] == [False, True, True]
        assert await new.export("o-1") == lines
        assert kinds(lines).count("instance") == 3
        assert await new.handle("o-1").result() == "c"
        assert await new.handle("o-1", first.run_id).result() == "a"
        async with serve(new, clock) as env:
            await env.advance(1)
            assert env.engine.progress == 0


@pytest.mark.parametrize(("source", "target"), PAIRS)
async def test_a_parked_workflow_is_taken_up_where_there_is_code_that_fits(source, target, clock):
    async with opened(source, clock) as old, opened(target, clock) as new:
        await old.start(brief, "o", id="o-1")
        async with Environment(store=old.store, registry=Registry(), clock=clock) as env:
            await env.settle()
        assert (await old.handle("o-1").describe()).status is Status.DIVERGED

        [arrival] = await new.import_(await old.export("o-1"))

        assert arrival.instance.status is Status.DIVERGED
        async with serve(new, clock) as env:
            assert await env.finish(new.handle("o-1").result()) == "o"


async def test_importing_twice_changes_nothing_and_says_so(clock):
    async with half_way("memory", clock) as old, opened("sqlite", clock) as new:
        lines = await old.export("o-1")
        await new.import_(lines)
        await new.handle("o-1").signal("note", "third")
        before = await new.export("o-1")

        [arrival] = await new.import_(lines)

        assert not arrival.new
        assert await new.export("o-1") == before


async def test_an_open_workflow_of_the_same_id_is_in_the_way(clock):
    async with half_way("memory", clock) as old, opened("sqlite", clock) as new:
        await new.start(brief, "mine", id="o-1")
        before = await new.export("o-1")

        with pytest.raises(
            AlreadyExists, match=r"'o-1' is in use by an open execution of 'brief'.*terminate one of them"
        ):
            await new.import_(await old.export("o-1"))

        assert await new.export("o-1") == before
        await new.handle("o-1").terminate()
        assert [arrival.new for arrival in await new.import_(await old.export("o-1"))] == [True]


@pytest.mark.parametrize("refused_first", [True, False])
async def test_each_workflow_of_an_import_comes_whole_or_not_at_all(refused_first, clock):
    async with half_way("memory", clock) as old, opened("sqlite", clock) as new:
        await old.start(brief, "theirs", id="o-2")
        await new.start(brief, "mine", id="o-1")
        before = await new.export("o-1")
        exports = [await old.export("o-1"), await old.export("o-2")]
        lines = [line for one in (exports if refused_first else exports[::-1]) for line in one]

        with pytest.raises(AlreadyExists, match="nothing of 'o-1' was imported"):
            await new.import_(lines)

        assert await new.export("o-1") == before
        assert await new.export("o-2") == exports[1]
        await new.handle("o-1").terminate()
        arrivals = {arrival.instance.entity_id: arrival.new for arrival in await new.import_(lines)}
        assert arrivals == {"o-1": True, "o-2": False}


async def test_an_import_cannot_redirect_a_promise_of_another_workflow(clock):
    promised = Registry()

    @promised.workflow
    async def paying(ctx: Context) -> str:
        return await ctx.promise("pay", type=str)

    async with opened("sqlite", clock) as client:
        async with Environment(store=client.store, registry=promised, clock=clock) as env:
            handle = await env.start(paying, id="o-1")
            lines = "\n".join(await client.export("o-1")).replace('"o-1"', '"o-2"')
            forged = lines.replace(handle.run_id, "forged").replace(handle.execution_id, "forged")
            with pytest.raises(AlreadyExists, match=r"a promise of the import belongs to workflow 'o-1'"):
                await client.import_(forged)
            with pytest.raises(NotFound):
                await client.handle("o-2").describe()
            await handle.resolve("pay", "paid")
            assert await env.finish(handle.result()) == "paid"


async def test_what_is_not_there_cannot_be_exported(clock):
    async with half_way("memory", clock) as old:
        with pytest.raises(NotFound, match=r"no workflow with id 'o-2'$"):
            await old.export("o-2")
        with pytest.raises(NotFound, match="no workflow with id 'o-1' and run 'r'"):
            await old.export("o-1", "r")


async def test_the_lines_are_a_head_the_log_the_inbox_and_the_activities(clock):
    async with half_way("sqlite", clock) as old:
        lines = await old.export("o-1")
        history = await old.handle("o-1").history()

    head = json.loads(lines[0])
    assert (head["type"], head["format"], head["events"], head["inbox"], head["activities"]) == ("instance", 1, 6, 2, 1)
    assert head["instance"]["tags"] == {"shop": "berlin\u2028"}
    assert lines[1:7] == [event.to_json() for event in history]
    assert kinds(lines[7:]) == ["inbox", "inbox", "activity"]
    assert [json.loads(line)["event"]["value"] for line in lines[7:9]] == ["first", "second"]


async def test_a_replay_takes_an_export_as_it_is(clock):
    async with half_way("memory", clock) as old:
        lines = await old.export("o-1")
        assert not (await replay(sell, lines)).finished
        assert (await replay(sell, "\n".join(lines))).diverged is None
        assert (await replay(brief, lines)).diverged is not None
        async with serve(old, clock) as env:
            for order in ("a", "b"):
                await env.start(brief, order, id="o-2")
        assert (await replay(brief, await old.export("o-2"))).result == "b"


def edited(line, **fields):
    return json.dumps(json.loads(line) | fields)


def head_of(line, **fields):
    head = json.loads(line)
    return json.dumps(head | {"instance": head["instance"] | fields})


def deep(size):
    return '{"type": "workflow_completed", "result": ' + "[" * size + "]" * size + "}"


# Line 1 is the head, 2 to 7 are the log, 8 and 9 the inbox, 10 the activity.
BAD = {
    "nothing": (lambda x: [], 1, "the lines end here, but the head of an execution"),
    "only blanks": (lambda x: ["", " \n"], 1, "the lines end here"),
    "no head": (lambda x: x[1:], 1, "expected the head of an execution (type 'instance'), found type 'workflow_started'"),
    "not JSON": (lambda x: [*x[:3], x[3][:-5], *x[4:]], 4, "not JSON: "),
    "no text": (lambda x: [*x[:3], None, *x[4:]], 4, "not a line of an export: "),
    "no object": (lambda x: [*x[:3], "[1]", *x[4:]], 4, "not a line of an export: "),
    "not Unicode": (lambda x: [*x[:3], '{"type": "\ud800"}', *x[4:]], 4, "not JSON: "),
    "too deep": (lambda x: [*x[:3], deep(10**5), *x[4:]], 4, "recursion"),
    "another format": (lambda x: [edited(x[0], format=2), *x[1:]], 1, "the line has format 2, this Resurgam reads 1"),
    "no format": (lambda x: ['{"type":"instance"}', *x[1:]], 1, "the line has format None"),
    "a head with something else": (lambda x: [edited(x[0], later=2), *x[1:]], 1, "unknown field `later`"),
    "a head without a status": (lambda x: [head_of(x[0], status="?"), *x[1:]], 1, "Invalid enum value '?'"),
    "a number that is too large": (lambda x: [head_of(x[0], wake_at=2**63), *x[1:]], 1, "wake_at is 9223372036854775808"),
    "a count below zero": (lambda x: [edited(x[0], inbox=-1), *x[1:]], 1, "counts must not be negative"),
    "a gap": (lambda x: [*x[:3], *x[4:]], 7, "expected entry 6 of 6"),
    "a gap that is counted": (
        lambda x: [edited(x[0], events=5), *x[1:3], *x[4:]],
        6,
        "1 entries are missing in the log, and 0 are forgotten",
    ),
    "a double": (lambda x: [*x[:3], x[2], *x[3:]], 4, "entry 2 follows entry 2"),
    "an unknown event": (lambda x: [*x[:3], edited(x[3], type="sung"), *x[4:]], 4, "not an event of this version"),
    "an event that cannot stand there": (lambda x: [*x[:3], edited(x[3], ref=1), *x[4:]], 4, "answers entry 1, which is not"),
    "no beginning": (lambda x: [x[0], edited(x[2], seq=1), *x[3:]], 2, "which cannot occur in status None"),
    "an entry too few": (lambda x: [edited(x[0], events=7), *x[1:]], 8, "expected entry 7 of 7"),
    "an entry too many": (lambda x: [edited(x[0], events=5), *x[1:]], 6, "its head says otherwise about last_seq"),
    "the head of another": (lambda x: [head_of(x[0], entity_id="x"), *x[1:]], 7, "its head says otherwise about entity_id"),
    "an end that was not": (lambda x: [head_of(x[0], status="failed"), *x[1:]], 7, "says otherwise about status"),
    "cut off in the log": (lambda x: x[:4], 4, "the lines end here, but entry 4 of 6 of execution"),
    "cut off in the inbox": (lambda x: x[:8], 8, "the lines end here, but inbox line 2 of 2 of execution"),
    "cut off at the end": (lambda x: x[:9], 9, "the lines end here, but activity 1 of 1 of execution"),
    "an inbox of nonsense": (lambda x: [*x[:7], '{"type":"inbox","event":{"type":"x"}}', *x[8:]], 8, "not an event"),
    "a command in the inbox": (lambda x: [*x[:7], f'{{"type":"inbox","event":{x[2]}}}', *x[8:]], 8, "nothing that can wait"),
    "an activity of no command": (lambda x: [*x[:9], re.sub('"ref":.', '"ref":2', x[9])], 10, "entry 2 is no activity that waits"),
    "an activity twice": (lambda x: [edited(x[0], activities=2), *x[1:], x[9]], 11, "entry 4 has an activity already"),
    "something left over": (lambda x: [*x, x[9]], 11, "expected the head of an execution (type 'instance'), found type 'activity'"),
    "the same twice": (lambda x: [*x, *x], 20, "ends here for the second time; give it only once"),
    "blank lines count": (lambda x: ["", *x[:3], "", "oops"], 6, "not JSON: "),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
async def test_bad_lines_are_one_error_that_names_the_line_and_nothing_comes_in(name, clock):
    spoil, number, reason = BAD[name]
    async with half_way("memory", clock) as old, opened("sqlite", clock) as new:
        lines = spoil(await old.export("o-1"))
        async with serve(old, clock) as env:
            await env.start(brief, "a", id="good")
        good = await old.export("good") if lines and number > 1 else []

        with pytest.raises(SerializationError) as caught:
            await new.import_([*good, *lines])

        assert str(caught.value).startswith(f"line {len(good) + number}: ")
        assert reason in str(caught.value)
        assert "\n" not in str(caught.value)
        assert (await new.list()).instances == ()
