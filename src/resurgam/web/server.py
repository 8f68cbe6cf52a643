"""The server: a worker and the HTTP API in one process, until it is told to stop."""

import asyncio
import contextlib
import errno
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final

import msgspec
import uvicorn
from starlette.applications import Starlette

from resurgam.core.errors import ResurgamError
from resurgam.engine import Engine
from resurgam.flows.http.outbound import Outbound
from resurgam.store.open import shown_url
from resurgam.store.retention_rules import Retain
from resurgam.web.access import is_loopback
from resurgam.web.app import app
from resurgam.web.connections import Connections, LimitedConnection
from resurgam.web.keys import Keys
from resurgam.web.public_url import set_public_url
from resurgam.worker.worker import Worker

_GRACE: Final = 10.0
"""Seconds in which requests in flight may finish once the server stops."""

_LINGER: Final = 1.0
"""Seconds in which idle connections may still send a request once the server stops: it may be on its way."""

_CANCELLED: Final = 1.0
"""Seconds in which requests that are given up may end."""

_LOOK: Final = 0.02
"""Seconds between two looks whether all requests have finished."""

_SWEEP: Final = 5.0
"""Seconds between two looks for connections that do not send what they have begun."""

_KEEP_ALIVE: Final = 60
"""Seconds for which an idle connection is kept."""

_BACKLOG: Final = 2048
_MAX_FILES: Final = 65_536
"""The most open files that the process asks for, as each connection is one; less if the system allows less."""

_NO_ADDRESS: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class CannotServe(ResurgamError):
    """The server cannot start: it cannot listen, or needs keys and there are none."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What to serve, and where. *public_url* None: the address that the server listens on.

    *argyll*: serve the protocol of Argyll, which knows no keys, though other routes need them. *outbound* are the rules for
    calls of HTTP steps. *retain* says which closed runs are removed. *archive* is read, and *archive_after* this time complete
    runs move there.
    """

    store: str
    host: str = "127.0.0.1"
    port: int = 8080
    public_url: str | None = None
    queues: tuple[str, ...] = ("default",)
    require_keys: bool = False
    argyll: bool = False
    outbound: Outbound | None = None
    retain: tuple[Retain, ...] | None = None
    archive: str | None = None
    archive_after: timedelta | None = None


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server listens, and the URL under which step services reach it."""

    url: str
    public_url: str
    needs_keys: bool


class Server:
    """Serve a store until a signal. Keys are needed unless every address is loopback."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._worker: Worker | None = None

    async def run(self, report: Callable[[Address], None]) -> None:
        """Serve until SIGTERM or SIGINT, then drain; call *report* as soon as requests are answered.

        A second signal skips the time in which requests and running work may finish. Raise `CannotServe` if the server
        cannot listen, or needs keys and there are none.
        """
        _allow_many_files()
        options = self._options
        with _signals_handled(self._signalled), contextlib.ExitStack() as opened:
            sockets = [opened.enter_context(one) for one in bind(options.host, options.port)]
            needs_keys = options.require_keys or not all(is_loopback(one.getsockname()[0]) for one in sockets)
            if needs_keys:
                await _check_for_keys(options)
            async with Engine(
                options.store,
                queues=options.queues,
                outbound=options.outbound,
                retain=options.retain,
                archive=options.archive,
                archive_after=options.archive_after,
            ) as engine:
                self._worker = engine.worker
                async with engine.health_checks():
                    await self._serve(engine, sockets, report, needs_keys=needs_keys)

    def _signalled(self) -> None:
        if self._stop.is_set():
            self._hurry.set()
            if self._worker is not None:
                self._worker.skip_grace()
        self._stop.set()

    async def _serve(
        self, engine: Engine, sockets: list[socket.socket], report: Callable[[Address], None], *, needs_keys: bool
    ) -> None:
        http = HttpServer(app(engine, keys=needs_keys, argyll=self._options.argyll or None), sockets)
        await http.start()
        try:
            address = self._address(sockets[0].getsockname()[1], needs_keys=needs_keys)
            await set_public_url(engine, address.public_url)
            report(address)
            await self._stop.wait()
        finally:
            await http.drain(self._hurry)

    def _address(self, port: int, *, needs_keys: bool) -> Address:
        host = self._options.host
        public = socket.gethostname() if host in ("", "0.0.0.0", "::") else host  # noqa: S104 -- compared, not bound
        public_url = self._options.public_url or _url(public, port)
        return Address(url=_url(host, port), public_url=public_url.rstrip("/"), needs_keys=needs_keys)


class HttpServer:
    """An application on listening sockets: `start` it, and `drain` it."""

    def __init__(self, served: Starlette, sockets: list[socket.socket]) -> None:
        self._served = served
        self._sockets = sockets
        self._config = uvicorn.Config(
            served,
            http=LimitedConnection,
            ws="websockets-sansio",
            ws_max_size=64 * 1024,
            lifespan="on",
            log_config=None,
            access_log=False,  # the path of a webhook has a secret
            proxy_headers=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(self._config)
        self.connections = self._server.server_state = Connections()
        self._running: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin to accept connections."""
        self._config.load()
        self._server.lifespan = self._config.lifespan_class(self._config)
        await self._server.startup(sockets=self._sockets)
        self._running = [asyncio.create_task(one) for one in (self._server.main_loop(), self._close_slow())]

    async def drain(self, hurry: asyncio.Event) -> None:
        """Accept nothing more, answer the requests that were accepted, and close; *hurry* ends the wait for them.

        Connections are not closed between two requests, because the next one may be on its way: they are closed with
        its answer, or after a moment without one.
        """
        waiting = self._stop_listening()
        self.connections.drain()
        self._served.state.drain.begin()
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.connect_accepted_socket(self._connection, one) for one in waiting))
        await self._finish_requests(hurry)
        await asyncio.sleep(0)  # a request that has just come must begin, or it would end without an answer
        if unfinished := [*self.connections.tasks]:
            for request in unfinished:
                request.cancel()  # it is answered that the server stops
            await asyncio.wait(unfinished, timeout=_CANCELLED)
        for task in self._running:
            task.cancel()
        await self._server.shutdown(sockets=self._sockets)

    def _stop_listening(self) -> list[socket.socket]:
        """Close the listening sockets; return the connections that wait to be accepted, which would be reset."""
        waiting = [found for one in self._sockets for found in _accept_all(one)]
        for server in self._server.servers:
            server.close()
        return waiting

    def _connection(self) -> LimitedConnection:
        return LimitedConnection(self._config, self.connections, self._server.lifespan.state)

    async def _finish_requests(self, hurry: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        begun_at = loop.time()
        while not hurry.is_set() and (passed := loop.time() - begun_at) < _GRACE:
            if not self.connections.connections and not self.connections.tasks:
                return
            if passed >= _LINGER and not self.connections.tasks:
                return
            await asyncio.sleep(_LOOK)

    async def _close_slow(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP)
            self.connections.close_slow(asyncio.get_running_loop().time())


@contextlib.contextmanager
def _signals_handled(handle: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, handle)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def bind(host: str, port: int) -> list[socket.socket]:
    """Return a socket for each address of a host that this machine has, all with the same port."""
    bound: list[socket.socket] = []
    missing: OSError | None = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            chosen = port or (bound[0].getsockname()[1] if bound else 0)
            try:
                bound.append(_bound(family, kind, protocol, (str(address[0]), chosen, *address[2:])))
            except OSError as error:
                if error.errno not in _NO_ADDRESS:
                    raise
                missing = error  # localhost may mean ::1 where there is no IPv6
        if not bound and missing is not None:
            raise missing
    except OSError as error:
        for one in bound:
            one.close()
        raise CannotServe(f"cannot listen on {host} port {port}: {error.strerror}; choose --host and --port") from error
    return bound


def _bound(family: int, kind: int, protocol: int, address: tuple[Any, ...]) -> socket.socket:
    one = socket.socket(family, kind, protocol)  # asyncio sets TCP_NODELAY only if the protocol is named
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind(address)
    except OSError:
        one.close()
        raise
    return one


def _accept_all(listening: socket.socket) -> list[socket.socket]:
    accepted = []
    with contextlib.suppress(BlockingIOError, OSError):
        while True:
            connection, _ = listening.accept()
            connection.setblocking(False)  # noqa: FBT003 -- it takes no keyword
            accepted.append(connection)
    return accepted


async def _check_for_keys(options: Options) -> None:
    async with Engine(options.store, worker=False) as engine:
        if not await Keys(engine.store.values).any_valid():
            shown = shown_url(options.store)
            raise CannotServe(
                f"serving on {options.host} needs an API key, and {shown} has none; create one with: "
                f"resurgam keys create NAME --role admin --store {shown}"
            )


def _allow_many_files() -> None:
    """Raise the soft limit of open files: 1,000 event streams do not fit the usual one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_FILES if hard == resource.RLIM_INFINITY else min(_MAX_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
