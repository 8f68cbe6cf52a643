"""The original's WebSocket: subscriptions, states at first, and their events without gaps."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec
import pytest
from starlette.applications import Starlette
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from resurgam import Engine, Registry
from resurgam.flows import StepDecorator
from resurgam.store import records as r
from resurgam.web import app
from resurgam.web.argyll import socket
from resurgam.web.argyll.events import flow_events
from resurgam.web.argyll.state import flow_shape
from resurgam.web.argyll.translations import Translations
from resurgam.web.window import Filter, Item
from support.listening import listening


class Client:
    """A client of the socket."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def ask(self, kind: str, **data: Any) -> None:
        await self._connection.send(msgspec.json.encode({"type": kind, "data": data}).decode())

    async def send(self, text: str) -> None:
        await self._connection.send(text)

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(20):
            found: dict[str, Any] = msgspec.json.decode(await self._connection.recv())
        return found

    async def subscribe(self, sub_id: str = "s", **data: Any) -> list[dict[str, Any]] | None:
        """Subscribe, and return the states; no event may come before the answer."""
        await self.ask("subscribe", sub_id=sub_id, **data)
        answer = await self.next()
        assert answer.keys() == {"type", "sub_id", "items"}
        assert (answer["type"], answer["sub_id"]) == ("subscribed", sub_id)
        items: list[dict[str, Any]] | None = answer["items"]
        return items

    async def until(self, kind: str) -> list[dict[str, Any]]:
        """Return the events up to one of a type."""
        found = [await self.next()]
        while found[-1]["type"] != kind:
            found.append(await self.next())
        return found


class World(NamedTuple):
    engine: Engine
    app: Starlette
    url: str

    @asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[Client]:
        async with connect(f"{self.url.replace('http', 'ws')}/engine/ws", **options) as connection:
            yield Client(connection)

    async def run(self, flow_id: str) -> None:
        await (await self.engine.start_flow(["double"], {"value": 2}, id=flow_id)).result(timeout=20)

    async def expected(self, flow_id: str, sub_id: str = "s") -> list[dict[str, Any]]:
        """Return the events of a flow as a subscription has them, with the names and the data of the listing."""
        shapes = [
            {
                "type": event.type,
                "data": event.data,
                "id": event.aggregate_id,
                "sub_id": sub_id,
                "timestamp": event.at,
                "sequence": event.sequence,
            }
            for event in flow_events(await self.engine.handle(flow_id).history())
        ]
        found: list[dict[str, Any]] = msgspec.json.decode(msgspec.json.encode(shapes))
        return found


@pytest.fixture
async def world() -> AsyncIterator[World]:
    registry = Registry()
    step = StepDecorator(registry)

    @step
    async def double(value: int) -> int:
        return 2 * value

    @step
    async def shown(double: int) -> str:
        for _ in range(30):  # other steps and clients come between
            await asyncio.sleep(0)
        return f"{double}"

    @step
    async def sent(shown: str) -> str:
        return shown

    async with Engine("memory://", registry=registry) as engine:
        made = app(engine, keys=False)
        async with listening(made) as url:
            yield World(engine, made, url)


async def test_a_subscription_has_the_events_of_flows_under_the_original_names(world: World) -> None:
    async with world.client() as client:
        assert await client.subscribe() is None
        await world.run("one")
        found = await client.until("flow_deactivated")
        assert found == await world.expected("one")
        assert [event["sequence"] for event in found] == list(range(len(found)))
        assert found[0]["id"] == ["flow", "one"]


async def test_a_subscription_has_only_what_fits_its_prefixes_and_types(world: World) -> None:
    """One copy for each subscription that an event fits."""
    async with world.client() as client:
        await client.subscribe("one", aggregate_ids=[["flow", "one"]], event_types=["flow_started"])
        await client.subscribe("flows", aggregate_ids=[["flow"]], event_types=["flow_started", "work_succeeded"])
        await client.subscribe("rest", aggregate_ids=[["catalog"], ["flow", "unknown"]])
        await world.run("two")
        await world.run("one")
        found = [await client.next() for _ in range(5)]
        assert sorted((event["sub_id"], event["type"], event["id"][1]) for event in found) == [
            ("flows", "flow_started", "one"),
            ("flows", "flow_started", "two"),
            ("flows", "work_succeeded", "one"),
            ("flows", "work_succeeded", "two"),
            ("one", "flow_started", "one"),
        ]


async def test_a_state_and_the_events_after_it_leave_no_gap_and_repeat_nothing(world: World) -> None:
    """At any point of a flow: the state holds the events before its sequence, and the others follow."""
    begins = set()
    async with world.client() as client:
        await client.subscribe("others", aggregate_ids=[["catalog"]])
        for number in range(12):
            name = f"flow-{number}"
            handle = await world.engine.start_flow(["sent"], {"value": 2}, id=name)
            for _ in range(3 * number):
                await asyncio.sleep(0)
            [state] = await client.subscribe(name, aggregate_ids=[["flow", name]], include_state=True) or []
            begin = state["sequence"]
            await handle.result(timeout=20)
            expected = await world.expected(name, name)
            tail = await client.until("flow_deactivated") if begin < len(expected) else []
            assert tail == expected[begin:]
            assert state == shape(["flow", name], flow_shape((await handle.history())[:begin]), begin)
            begins.add(begin)
    assert len(begins) > 1


def shape(aggregate_id: list[str], state: dict[str, Any], sequence: int) -> Any:
    return msgspec.json.decode(msgspec.json.encode({"id": aggregate_id, "data": state, "sequence": sequence}))


async def test_the_states_of_the_catalog_and_the_cluster_and_their_changes_follow_each_other(world: World) -> None:
    ids = [["catalog"], ["cluster"], ["flow", "unknown"]]
    async with world.client() as client:
        catalog, cluster = await client.subscribe(aggregate_ids=ids, include_state=True) or []
        assert catalog["id"] == ["catalog"]
        assert set(catalog["data"]["steps"]) == {"double", "shown", "sent"}
        assert cluster["id"] == ["cluster"]
        assert cluster["sequence"] == 0
        await world.engine.remove_step("sent")
        event = await client.next()
        assert (event["type"], event["id"], event["sequence"]) == (
            "step_unregistered",
            ["catalog"],
            catalog["sequence"],
        )
        assert event["data"] == {"step_id": "sent"}


async def test_the_same_id_replaces_a_subscription_and_unsubscribe_ends_it(world: World) -> None:
    async with world.client() as client:
        await client.subscribe("s", event_types=["work_succeeded"])
        await client.subscribe("s", event_types=["flow_started"])
        await world.run("one")
        assert (await client.next())["type"] == "flow_started"
        await client.ask("unsubscribe", sub_id="s")
        assert await client.next() == {"type": "unsubscribed", "sub_id": "s"}
        await world.run("two")
        await client.subscribe("t", event_types=["flow_started"])
        await world.run("three")
        found = await client.next()
        assert (found["sub_id"], found["id"]) == ("t", ["flow", "three"])


@pytest.mark.parametrize(
    "text",
    [
        *("", "no JSON", "[]", '{"type":"ping"}', '{"type":"subscribe"}', '{"type":"subscribe","data":{"sub_id":""}}'),
        '{"type":"subscribe","data":' + "[" * 20_000,
    ],
)
async def test_a_message_that_is_not_understood_is_ignored(world: World, text: str) -> None:
    async with world.client() as client:
        await client.send(text)
        assert await client.subscribe() is None


async def test_a_client_that_goes_away_frees_everything(world: World) -> None:
    tasks = len(asyncio.all_tasks())
    async with world.client() as client, world.client() as other:
        await client.subscribe()
        await other.subscribe()
        assert world.app.state.hub.streams == 2
    async with asyncio.timeout(20):
        while world.app.state.hub.streams or len(asyncio.all_tasks()) > tasks:
            await asyncio.sleep(0)


async def test_sockets_are_closed_when_the_server_is_about_to_stop(world: World) -> None:
    async with world.client() as client:
        await client.subscribe()
        world.app.state.drain.begin()
        with pytest.raises(ConnectionClosed) as closed:
            await client.next()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"{world.url.replace('http', 'ws')}/engine/ws")
        assert refused.value.response.status_code == 503


async def test_a_page_of_another_site_is_refused(world: World) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with world.client(origin="https://evil.example"):
            pass
    assert refused.value.response.status_code == 403
    assert world.app.state.hub.streams == 0


class Stalled:
    """A socket whose client takes nothing."""

    async def send_text(self, text: str) -> None:
        await asyncio.Event().wait()

    async def receive(self) -> dict[str, Any]:
        return {"type": "websocket.receive", "text": '{"type":"subscribe","data":{"sub_id":"s"}}'}


async def test_a_client_that_takes_nothing_is_cut_off(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "_PATIENCE", 0.01)
    stream = await world.app.state.hub.open(Filter())
    made: Any = Stalled()
    assert await socket.Connection(made, Translations(world.engine), stream).serve() == 1008
    stream.close()


async def test_an_event_is_translated_with_one_look_at_the_log_at_most(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order none is needed; an event that comes too early or too late is the same as in its order."""
    await world.run("one")
    page = await world.engine.store.feed.read(r.FeedQuery(entity_id="one"))
    items = [Item(*one) for one in zip(page.entries, page.cursors, strict=True)]
    expected = list(flow_events(await world.engine.handle("one").history()))
    reads, read = [], world.engine.store.inspector.history

    async def counted(execution: r.Addressed, **options: Any) -> Any:
        reads.append(execution)
        return await read(execution, **options)

    monkeypatch.setattr(world.engine.store.inspector, "history", counted)
    for order, looks in ((range(len(items)), 0), ((0, 5, 6, 2, 7, 8), 2)):
        made = Translations(world.engine)
        reads.clear()
        for number in order:
            assert await made.event_of(items[number]) == expected[number]
        assert len(reads) == looks
        if looks == 0:
            assert made._logs == {}  # the flow has ended


async def test_a_socket_that_is_behind_reads_no_log_again_for_each_event(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.run("one")
    page = await world.engine.store.feed.read(r.FeedQuery(entity_id="one"))
    ahead, behind = ([Item(*one) for one in zip(page.entries, page.cursors, strict=True)] for _ in range(2))
    made = Translations(world.engine)
    told = [await made.event_of(item) for item in ahead[:7]]

    async def refused(execution: r.Addressed, after: int = 0) -> Any:
        raise AssertionError("the log is read")

    monkeypatch.setattr(world.engine.store, "read", refused)
    assert [await made.event_of(item) for item in behind[:7]] == told
    assert await made.event_of(ahead[7]) == await made.event_of(behind[7])
