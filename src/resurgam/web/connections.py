"""Connections of clients: the limits of a request's head, and their end when the server stops."""

import asyncio
from http import HTTPStatus
from typing import Any, Final, cast

import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from resurgam.web.problems import MEDIA_TYPE, Problem, details_of

MAX_HEAD: Final = 64 * 1024
"""The most bytes of the URL and the headers of a request, and of what stands between or behind the parts of its body."""

REQUEST_SECONDS: Final = 60.0
"""Seconds within which a request must have arrived: its head since the connection was made, and its body.

A client that takes nothing of its answer for so long is given up as well.
"""

_REFUSED_SECONDS: Final = 2.0
"""Seconds for which the rest of a refused request is read and dropped."""


class Connections(ServerState):
    """The connections of a server. *draining*: each is closed with the answer to the request that comes next."""

    def __init__(self) -> None:
        super().__init__()
        self.draining = False

    def drain(self) -> None:
        """Close each connection with its next answer. An answer that has begun already cannot say so, and stays."""
        self.draining = True
        for connection in self.connections:
            if isinstance(connection, LimitedConnection):
                connection.close_with_next_answer()

    def close_slow(self, now: float) -> None:
        """Close connections whose request has not arrived in time, or whose client does not take the answer."""
        for connection in [*self.connections]:
            if not isinstance(connection, LimitedConnection):
                continue
            if connection.is_stuck(now):
                connection.transport.abort()  # the end of what is left would be waited for without end
            elif connection.is_slow(now):
                connection.transport.close()


class LimitedConnection(HttpToolsProtocol):
    """A connection that refuses a long head, which the parser of uvicorn does not."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._state = cast("Connections", server_state)
        self._head_bytes = 0
        self._in_head = True
        self._in_message = True
        self._has_body = False
        self._is_refused = False
        self._since = self.loop.time()
        self._unsent, self._unsent_since = 0, self._since
        self._unanswered: list[RequestResponseCycle] = []

    def data_received(self, data: bytes) -> None:
        """Parse what has arrived; a head is refused as soon as it is too long, whether it ends or not.

        So are the headers behind a body, which the parser would collect without end.
        """
        if self._is_refused:
            return
        self._has_body = False
        super().data_received(data)
        if self._in_message and not self._has_body and not self._is_done:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD:
                self._refuse_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell every request that its caller has left; the protocol tells only the last of several that came at once."""
        super().connection_lost(exc)
        for cycle in self._unanswered:
            _leave(cycle)

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over, unless an answer that is still to come would be written into the socket."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.send_400_response("")
        else:
            super().handle_websocket_upgrade()

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self._head_bytes = 0
        self._in_head = self._in_message = True
        self._since = self.loop.time()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; one behind the body changes nothing."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start to answer, and say in the answer whether the connection is closed with it."""
        if self._is_done:
            return
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD:
            self._refuse_head()
            return
        super().on_headers_complete()
        self._in_head = False
        if self.cycle is not None:
            self._unanswered = [one for one in (*self._unanswered, self.cycle) if not one.response_complete]
        if self._state.draining:
            self.close_with_next_answer()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body, unless the request is not answered."""
        self._has_body, self._head_bytes = True, 0
        if not self._is_done:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request, unless it is not answered."""
        self._in_message = False
        if not self._is_done:
            super().on_message_complete()

    @property
    def _is_done(self) -> bool:
        """Whether nothing more can be answered."""
        return self._is_refused or self.transport.is_closing()

    def close_with_next_answer(self) -> None:
        """Say in an answer that has not begun that the connection is closed with it, and do so."""
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.keep_alive = False

    def is_slow(self, now: float) -> bool:
        """Whether a request has begun, or a first one is awaited, and has not arrived for long."""
        if now - self._since <= REQUEST_SECONDS:
            return False
        return self._in_head or (self.cycle is not None and self.cycle.more_body)

    def is_stuck(self, now: float) -> bool:
        """Whether the client has taken nothing of what is to be sent, at every look for long."""
        unsent = self.transport.get_write_buffer_size()
        if not unsent or unsent != self._unsent:
            self._unsent, self._unsent_since = unsent, now
        return now - self._unsent_since > REQUEST_SECONDS

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP."""
        self._refuse(Problem(400, "bad_http", "the request is not valid HTTP/1.1"))

    def _refuse_head(self) -> None:
        detail = f"the URL and the headers have more than {MAX_HEAD} bytes together"
        self._refuse(Problem(431, "head_too_large", detail))

    def _refuse(self, problem: Problem) -> None:
        """Answer, and close a moment later: at once would reset the connection, and the answer would be lost.

        Requests that have arrived whole before are answered, and nothing else is: the refusal would be taken for their answer.
        """
        self._is_refused = True
        if whole := [one for one in self._unanswered if not one.response_complete and not one.more_body]:
            whole[-1].keep_alive = False  # it closes the connection
            return
        if self._in_message and not self._in_head and self.cycle.response_started:
            self.transport.close()  # a second answer would become a part of the first
            return
        for cycle in self._unanswered:
            _leave(cycle)  # what it still sends is dropped
        body = msgspec.json.encode(details_of(problem))
        head = (
            f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}\r\ncontent-type: {MEDIA_TYPE}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_REFUSED_SECONDS, self.transport.close)


def _leave(cycle: RequestResponseCycle) -> None:
    """Tell a request that nobody waits for its answer."""
    if not cycle.response_complete:
        cycle.disconnected = True
        cycle.message_event.set()
