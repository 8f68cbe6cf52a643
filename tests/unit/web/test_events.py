"""`GET /events`: what a client of server-sent events gets, and what ends it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import NamedTuple

import msgspec
import pytest
from starlette.applications import Starlette

from resurgam import Context, Engine, Registry
from resurgam.core.clock import Clock
from resurgam.store.records import FeedEntry
from resurgam.store.sqlite.store import SqliteStore
from resurgam.testing import ManualClock
from resurgam.testing.contract.bench import Bench, OpensStores
from resurgam.web import app, events, keys
from resurgam.web.access import Role
from resurgam.web.drain import Drain
from resurgam.web.hub import BEAT, Hub
from resurgam.web.window import Item
from support.sse import events_of

registry = Registry()


@registry.workflow
async def greet(_ctx: Context, name: str) -> str:
    return f"hello {name}"


STARTED = [("type", "workflow_started")]


class World(NamedTuple):
    engine: Engine
    app: Starlette
    clock: ManualClock

    async def greet(self, name: str) -> None:
        await self.engine.execute(greet, name, id=name)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with Engine("memory://", registry=registry) as engine:
        clock, made = ManualClock(), app(engine, keys=False)
        made.state.hub = hub_with(engine, made, clock)
        yield World(engine, made, clock)


def hub_with(engine: Engine, made: Starlette, clock: Clock) -> Hub:
    return Hub(lambda: engine.store, made.state.drain, clock)


async def test_an_event_is_sent_with_its_instance_and_a_cursor(world: World) -> None:
    async with events_of(world.app) as client:
        await world.greet("ada")
        [first, *_, last] = await client.has(3)
        assert client.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert client.headers["cache-control"] == "no-store"
        assert "content-length" not in client.headers
        assert set(first) == {"entity_id", "execution_id", "kind", "seq", "type", "event"}
        assert (first["entity_id"], first["kind"], first["seq"], first["type"]) == (
            "ada",
            "workflow",
            1,
            "workflow_started",
        )
        assert first["event"]["name"].endswith("greet")
        assert last["type"] == "workflow_deactivated"
        assert len(set(client.ids)) == len(client.ids)


async def test_a_client_that_reconnects_goes_on_after_its_last_event(world: World) -> None:
    """The header is newer than the cursor in the URL, which a browser repeats."""
    async with events_of(world.app) as client:
        begin = client.cursor
        await world.greet("ada")
        whole = list(await client.has(3))
        ids = client.ids
    await world.greet("bob")
    for number, last_id in enumerate(ids, 1):
        async with events_of(world.app, [("after", begin)], last_id=last_id) as client:
            found = await client.has(6 - number)
            assert found[: 3 - number] == whole[number:]
            assert [one["entity_id"] for one in found[3 - number :]] == ["bob"] * 3


async def test_a_client_that_had_no_event_yet_misses_none_when_it_reconnects(world: World) -> None:
    """Its first cursor comes before the first event."""
    async with events_of(world.app) as client:
        cursor = client.cursor
    await world.greet("ada")
    async with events_of(world.app, last_id=cursor) as client:
        assert len(await client.has(3)) == 3


async def test_filters_are_repeated_parameters(world: World) -> None:
    async with events_of(world.app, [("instance", "ada"), ("instance", "bob"), *STARTED]) as client:
        for name in ("ada", "eve", "bob"):
            await world.greet(name)
        assert [(one["entity_id"], one["type"]) for one in await client.has(2)] == [
            ("ada", "workflow_started"),
            ("bob", "workflow_started"),
        ]


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ([("after", "yesterday")], "bad_cursor"),
        ([("after", "99999999")], "bad_cursor"),
        ([("instance", "")], "bad_query"),
        ([("follow", "perhaps")], "bad_query"),
        ([("since", "1")], "bad_query"),
    ],
)
async def test_a_bad_cursor_or_filter_is_refused(world: World, query: list[tuple[str, str]], code: str) -> None:
    async with events_of(world.app, query) as client:
        assert client.status == 400
        assert client.body["code"] == code
    assert world.app.state.hub.streams == 0


async def test_a_bad_last_event_id_is_refused(world: World) -> None:
    async with events_of(world.app, last_id="yesterday") as client:
        assert client.status == 400
        assert "yesterday" in client.body["detail"]


def test_an_event_is_one_line_however_its_values_were_written() -> None:
    """A line break would end the line, or forge a field."""
    body = msgspec.Raw(b'{"value":{\n\n"a":\r\n"id: 7\\n"}}')
    entry = FeedEntry(entity_id="a\nb", execution_id="x", kind="workflow", seq=1, type="signal_received", body=body)
    line = Item(entry, "1").line
    assert len(line.splitlines()) == 1
    decoded = msgspec.json.decode(line)
    assert (decoded["entity_id"], decoded["event"]) == ("a\nb", {"value": {"a": "id: 7\n"}})


async def test_a_stream_without_follow_ends_with_the_last_event(world: World) -> None:
    await world.greet("ada")
    async with events_of(world.app, [("after", ""), ("follow", "false")]) as client:
        await client.until(lambda: client.ended)
        assert len(client.events) == 3


async def test_an_idle_stream_has_a_comment_at_every_beat(world: World) -> None:
    async with events_of(world.app) as client:
        sent = client.sent
        world.clock.move_to(world.clock.now() + BEAT)
        await client.until(lambda: client.sent > sent)
        assert client.events == []


async def test_a_stream_ends_soon_after_its_key_is_revoked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "KEPT_SECONDS", 0)
    guarded = app(world.engine)
    guarded.state.hub = hub_with(world.engine, guarded, world.clock)
    known = keys.Keys(world.engine.store.values)
    number, key = await known.create("reader", Role.READ, 0)
    async with events_of(guarded, key=key) as client:
        await world.greet("ada")
        await client.has(3)
        await known.revoke(number, 0)
        world.clock.move_to(world.clock.now() + BEAT)
        await client.until(lambda: client.ended)
        assert client.comments == ["the key is unknown or revoked; `resurgam keys list` lists the keys"]


async def test_a_slow_client_holds_up_no_other_and_misses_nothing(world: World) -> None:
    async with events_of(world.app, STARTED) as slow, events_of(world.app, STARTED) as quick:
        slow.stall()
        for number in range(20):
            await world.greet(f"person {number}")
        assert len(await quick.has(20)) == 20
        assert slow.events == []
        slow.resume()
        assert await slow.has(20) == quick.events


async def test_a_client_that_goes_away_frees_its_stream(world: World) -> None:
    """Also one that takes nothing."""
    tasks = asyncio.all_tasks()
    async with events_of(world.app) as one, events_of(world.app) as other:
        assert world.app.state.hub.streams == 2
        one.stall()
        await world.greet("ada")
        one.leave()
        await other.has(3)
        while world.app.state.hub.streams == 2:
            await asyncio.sleep(0)
    assert world.app.state.hub.streams == 0
    await asyncio.sleep(0)
    assert {task for task in asyncio.all_tasks() - tasks if not task.done()} == set()


async def test_streams_end_cleanly_when_the_server_is_about_to_stop(world: World) -> None:
    """A client that takes nothing does not hold up the end; those that come then are told to come again."""
    async with events_of(world.app) as client, events_of(world.app) as stalled:
        stalled.stall()
        await world.greet("ada")
        await client.has(3)
        drain: Drain = world.app.state.drain
        drain.begin()
        await client.until(lambda: client.ended)
        assert client.comments == ["the server is about to stop; reconnect"]
        async with events_of(world.app, last_id=client.cursor) as late:
            assert late.status == 200
            await late.until(lambda: late.ended)
            assert (late.comments, late.cursor) == (["the server is about to stop; reconnect"], client.cursor)
        while world.app.state.hub.streams:
            await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_PATIENCE", 0.01)


async def test_a_stream_that_only_asks_for_the_head_has_no_body(world: World) -> None:
    async with events_of(world.app, method="HEAD") as client:
        await client.until(lambda: client.ended)
        assert client.sent == 0


async def test_a_thousand_streams_make_the_store_read_no_more_than_one() -> None:
    clock = ManualClock()
    store = SqliteStore(None, clock, name="streams", lease=10_000, synchronous="OFF")
    b = Bench(store, clock, OpensStores())
    statements: list[str] = []
    store.database.trace(statements.append, statements.append)
    reads = []
    async with Engine(store, registry=registry, worker=False, clock=clock) as engine:
        made = app(engine, keys=False)
        for count in (1, 1000):
            async with AsyncExitStack() as stack:
                clients = [await stack.enter_async_context(events_of(made)) for _ in range(count)]
                statements.clear()
                for number in range(5):
                    await b.create(f"{count}-{number}")
                    for client in clients:
                        await client.has(number + 1)
                reads.append([statement for statement in statements if statement.startswith("SELECT")])
    assert len(reads[0]) == len(reads[1]) > 0
    await store.close()
