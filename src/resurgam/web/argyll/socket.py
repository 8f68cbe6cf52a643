"""The WebSocket of the original: subscriptions to the events of flows and of the catalog, with their state at first."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, Final

import msgspec
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from resurgam.core import flow_event as fe
from resurgam.core.errors import StoreError
from resurgam.engine import Engine
from resurgam.web.access import Guard, Role
from resurgam.web.argyll.events import WireEvent
from resurgam.web.argyll.exchange import refusal
from resurgam.web.argyll.translations import Aggregate, Snapshot, Translations
from resurgam.web.hub import Hub, Stream
from resurgam.web.problems import Problem, problem_of
from resurgam.web.window import Filter, Item

logger = logging.getLogger("resurgam.web")

_PATIENCE: Final = 10
"""Seconds that a client has to take a message, before it is cut off."""

_MOST: Final = 256
"""Subscriptions of one client at most."""

_RESTART: Final = 1012
_POLICY: Final = 1008
_FAILED: Final = 1011
"""Why a socket is closed: the server stops, the client takes nothing, the store does not answer."""


class Request(msgspec.Struct, frozen=True):
    """What a client asks for. *aggregate_ids* are prefixes; None: all. *event_types*: None or empty: all."""

    sub_id: Annotated[str, msgspec.Meta(min_length=1)]
    aggregate_ids: tuple[Aggregate, ...] | None = None
    event_types: frozenset[str] | None = None
    include_state: bool = False


class Message(msgspec.Struct, frozen=True):
    """A message of a client; types that are not known are ignored."""

    type: str
    data: msgspec.Raw = msgspec.Raw(b"{}")


class Subscription:
    """The events that one subscription of a client has: those that fit, and are not in its snapshots already."""

    def __init__(self, request: Request, snapshots: Sequence[Snapshot]) -> None:
        self._request = request
        self._begins = {one.aggregate_id: one.sequence for one in snapshots}

    def may_fit(self, item: Item) -> bool:
        """Whether an entry may be one of them, as far as it can be told before it is translated."""
        wanted, entry = self._request.aggregate_ids, item.entry
        if wanted is None or entry.kind != fe.FLOW:
            return True
        return any(_is_prefix(one, ("flow", entry.entity_id)) for one in wanted)

    def fits(self, event: WireEvent) -> bool:
        """Whether an event is one of them."""
        wanted, types = self._request.aggregate_ids, self._request.event_types
        return (
            (wanted is None or any(_is_prefix(one, event.aggregate_id) for one in wanted))
            and (not types or event.type in types)
            and event.sequence >= self._begins.get(event.aggregate_id, 0)
        )


def _is_prefix(prefix: Aggregate, whole: Aggregate) -> bool:
    return whole[: len(prefix)] == prefix


class Connection:
    """One client. Its requests and the events take turns: no event passes while a snapshot is read."""

    def __init__(self, websocket: WebSocket, translations: Translations, stream: Stream) -> None:
        self._websocket = websocket
        self._translations = translations
        self._stream = stream
        self._subscriptions: dict[str, Subscription] = {}
        self._turn = asyncio.Lock()

    async def serve(self) -> int:
        """Serve the client until it goes away, takes nothing, or the server stops; return why, as a closing code."""
        tasks = [asyncio.ensure_future(self._answer()), asyncio.ensure_future(self._send_events())]
        try:
            ends: set[asyncio.Future[Any]] = {*tasks, self._stream.ended}
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return _closing_code([task for task in tasks if task in done])

    async def _answer(self) -> None:
        while True:
            received = await self._websocket.receive()
            if received["type"] == "websocket.disconnect":
                return
            try:
                message = msgspec.json.decode(received.get("text") or received.get("bytes") or b"", type=Message)
                if message.type in ("subscribe", "unsubscribe"):
                    await self._take(message.type, msgspec.json.decode(message.data, type=Request))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                logger.warning("a message of a socket is ignored: %s", error)

    async def _take(self, kind: str, request: Request) -> None:
        async with self._turn:
            if kind == "unsubscribe":
                self._subscriptions.pop(request.sub_id, None)
                await self._send({"type": "unsubscribed", "sub_id": request.sub_id})
            elif len(self._subscriptions) >= _MOST and request.sub_id not in self._subscriptions:
                logger.warning("a subscription is ignored: a socket has at most %d of them", _MOST)
            else:
                snapshots = await self._snapshots(request)
                items = [one.shape() for one in snapshots] if request.include_state else None
                await self._send({"type": "subscribed", "sub_id": request.sub_id, "items": items})
                self._subscriptions[request.sub_id] = Subscription(request, snapshots)

    async def _snapshots(self, request: Request) -> list[Snapshot]:
        """Return the states that a client wants; those of flows that do not exist are left out."""
        if not request.include_state:
            return []
        found = [await self._translations.snapshot(one) for one in dict.fromkeys(request.aggregate_ids or ())]
        return [one for one in found if one is not None]

    async def _send_events(self) -> None:
        while (batch := await self._stream.next()) is not None:
            for item in batch.items:
                if item.entry.kind in (fe.FLOW, fe.CATALOG):
                    async with self._turn:
                        await self._send_event(item)

    async def _send_event(self, item: Item) -> None:
        wanted = {name: one for name, one in self._subscriptions.items() if one.may_fit(item)}
        event = await self._translations.event_of(item) if wanted else None
        if event is None:
            return
        shape = {
            "type": event.type,
            "data": event.data,
            "id": event.aggregate_id,
            "timestamp": event.at,
            "sequence": event.sequence,
        }
        for name, subscription in wanted.items():
            if subscription.fits(event):
                await self._send({**shape, "sub_id": name})

    async def _send(self, message: dict[str, Any]) -> None:
        async with asyncio.timeout(_PATIENCE):
            await self._websocket.send_text(msgspec.json.encode(message).decode())


def _closing_code(done: Sequence["asyncio.Future[None]"]) -> int:
    for task in done:
        error = task.exception()
        if isinstance(error, TimeoutError):
            return _POLICY
        if isinstance(error, StoreError):
            return _FAILED
        if error is not None and not isinstance(error, OSError | WebSocketDisconnect):
            raise error
    return _RESTART


async def _refuse(websocket: WebSocket, problem: Problem) -> None:
    if "websocket.http.response" in websocket.scope.get("extensions", {}):
        await websocket.send_denial_response(refusal(problem.status, problem.detail))
    else:
        await websocket.close(_POLICY)


def route(engine: Engine, guard: Guard) -> WebSocketRoute:
    """Return the route of the socket."""
    translations = Translations(engine)

    async def serve(websocket: WebSocket) -> None:
        hub: Hub = websocket.app.state.hub
        try:
            await guard.check(websocket, Role.READ)
            stream = await hub.open(Filter())
        except Exception as error:
            problem = problem_of(error)
            if problem is None:
                raise
            await _refuse(websocket, problem)
            return
        try:
            await websocket.accept()
            code = await Connection(websocket, translations, stream).serve()
        finally:
            stream.close()
        with suppress(RuntimeError, OSError, WebSocketDisconnect):  # the client may be gone, or take nothing
            await asyncio.wait_for(websocket.close(code), 1)

    return WebSocketRoute("/engine/ws", serve)
