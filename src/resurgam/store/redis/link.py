"""The way from the verbs of a store to its functions: routing, retries, opening.

A call that a server has refused was not executed: it is sent again, to the server that has its partition now, or after a
pause. A call that was under way when its connection ended has an unknown outcome: it fails, and is not sent again unless it
only reads.

A slot that is being moved answers ASK to every call, because the key that a call declares never exists. The link does not
follow it but waits for the end of the move: a function must not see half a partition.
"""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from secrets import token_hex
from typing import Any, Final

from resurgam.core.clock import Clock, is_system
from resurgam.core.errors import StoreError
from resurgam.core.identity import route_of
from resurgam.store.lifetime import Lifetime
from resurgam.store.redis.connection import ReplyError
from resurgam.store.redis.discovery import find_primaries, tag_of
from resurgam.store.redis.library import library
from resurgam.store.redis.node import PATIENCE, Done, Frame, Group, Node, call_back
from resurgam.store.redis.opening import examine, found_store
from resurgam.store.redis.url import Address, Endpoint, Topology

_logger: Final = logging.getLogger("resurgam.store")

_SOON: Final = 0.05
"""Seconds until a call is repeated that the server could not execute just now."""

_NOT_NOW: Final = frozenset({"ASK", "TRYAGAIN", "CLUSTERDOWN", "LOADING", "BUSY", "MASTERDOWN"})
"""Answers of a server that has not executed a call and may do so later."""

_REMEDIES: Final = {
    "OOM": "give the server more memory, or purge closed workflows",
    "MISCONF": "the server cannot write to its disk",
    "NOREPLICAS": "too few replicas are connected for min-replicas-to-write",
    "NOPERM": "the user of the URL needs all commands and channels on the keys of the prefix",
}
"""What to do about an error of the server, by its code."""

_ROUTE: Final = 4
"""Hex digits of a route."""


@functools.lru_cache(maxsize=4096)
def _partition_of(entity_id: str, partitions: int) -> int:
    return int(route_of(entity_id), 16) % partitions


class Link:
    """The servers of one open store. Nothing is sent before the first call, and with *reads_only* nothing is written."""

    def __init__(self, address: Address, clock: Clock, *, name: str, lease: int, reads_only: bool = False) -> None:
        self.address = address
        self.partitions = address.partitions
        self.owner = f"{name}-{token_hex(4)}"
        """The name of this open store: the owner of its leases."""

        self.keys: Sequence[str] = [f"{address.prefix}{{{tag_of(n)}}}:" for n in range(address.partitions)]
        """The prefix of all keys of each partition."""

        self.store_id = ""
        """The id that the store got when it was created; known once it is open."""

        self.notify: Callable[[int, Sequence[bytes]], None] = lambda *_: None
        """Called with a partition and the notices of each function call."""

        self.on_given_up: Callable[[int, int], None] = lambda *_: None
        """Called with a partition and the number of a call that may have leased something for a caller who got an error."""

        self.on_open: Callable[[], Awaitable[None]] | None = None
        """Awaited once the servers are known, before the first calls are sent."""

        self.after_fork: Callable[[], None] | None = None
        """Called in a fork of the process that opened the store."""

        self.lifetime = Lifetime(after_fork=self._leave_behind)
        self._warning: str | None = None
        self._reads_only = reads_only
        self._library = library()
        moment = None if is_system(clock) else (lambda: str(clock.now()))
        keys = [key.encode() for key in self.keys]
        self._frame = Frame(self._library, keys, lease, self.owner, moment, reads_only=reads_only)
        self._nodes: dict[Endpoint, Node] = {}
        self._routes: list[Node] | None = None
        self._held: list[Callable[[Exception | None], None]] = []
        self._opening: asyncio.Task[None] | None = None
        self._finding: asyncio.Task[None] | None = None
        self._repeats: dict[Group, asyncio.TimerHandle] = {}
        self._loading: dict[Endpoint, asyncio.Task[None]] = {}

    # The calls of the verbs.

    def partition_of(self, entity_id: str) -> int:
        """Return the partition of an entity."""
        return _partition_of(entity_id, self.partitions)

    def partition_of_route(self, routed_id: str) -> int | None:
        """Return the partition of an id that begins with a route; None if it does not."""
        try:
            return int(routed_id[:_ROUTE].encode("ascii"), 16) % self.partitions if len(routed_id) > _ROUTE else None
        except ValueError:
            return None

    def call(self, partition: int, verb: str, part: object, done: Done, *, at_once: bool = False) -> None:
        """Add a part to the next flight; *done* gets its answer, or an exception, outside of any task.

        The flight leaves when the callbacks of this turn of the loop are done, so that their calls share it; *at_once* saves
        the turn, for a caller that has nothing else to send.
        """
        if self.lifetime.refusal is not None:
            done(StoreError(self.lifetime.refusal))
        elif self._routes is not None:
            self._routes[partition].add(partition, verb, part, done, at_once=at_once)
        else:
            self._when_open(lambda error: self.call(partition, verb, part, done) if error is None else done(error))

    async def ask(self, partition: int, verb: str, part: object) -> Any:
        """Return the answer to a part."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.call(partition, verb, part, lambda answer: None if future.done() else future.set_result(answer))
        answer = await future
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def ask_all(self, verb: str, part: object) -> list[Any]:
        """Return the answers of all partitions to one part, by partition."""
        return list(await asyncio.gather(*(self.ask(partition, verb, part) for partition in range(self.partitions))))

    async def any_primary(self, attempt: int = 0) -> Endpoint:
        """Return a server that takes writes, once the store is open; each *attempt* asks for another."""
        self.lifetime.check()
        if self._routes is None:
            opened: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
            self._when_open(lambda error: None if opened.done() else opened.set_result(error))
            if (error := await opened) is not None:
                raise error
        elif attempt:
            self._find()
        assert self._routes is not None
        endpoints = list(dict.fromkeys(node.endpoint for node in self._routes))
        return endpoints[attempt % len(endpoints)]

    def warn_of_losses(self) -> None:
        """Log once what can be lost of acknowledged work; for a store that starts or runs work, not for one that looks."""
        if self._warning is not None:
            _logger.warning(self._warning)
            self._warning = None

    @property
    def nodes(self) -> Collection[Node]:
        """The servers that are known."""
        return self._nodes.values()

    @property
    def is_busy(self) -> bool:
        """Whether calls wait, or are under way."""
        return bool(self._held or self._repeats) or any(node.is_busy for node in self._nodes.values())

    @property
    def flights(self) -> int:
        """The number of round trips with calls."""
        return sum(node.flights for node in self._nodes.values())

    async def close(self) -> None:
        """Fail all calls that wait, and end the connections."""
        if self.lifetime.forked:
            return
        self.lifetime.end()
        tasks = [task for task in (self._opening, self._finding, *self._loading.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        error = StoreError("the store was closed while this waited")
        self._release_held(error)
        for group, handle in self._repeats.items():
            handle.cancel()
            group.fail(error)
        for node in self._nodes.values():
            node.close(error)

    # Opening.

    def _when_open(self, then: Callable[[Exception | None], None]) -> None:
        """Open the store, unless that is under way; call back when it is open, or with the error."""
        self._held.append(then)
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open(), name="redis open")

    async def _open(self) -> None:
        failure: Exception | None = None
        try:
            self._routes = await self._prepare_patiently()
            if self.on_open is not None:
                await self.on_open()
        except Exception as error:  # noqa: BLE001 -- raised by every call that waits
            self._routes, failure = None, error
        self._opening = None
        self._release_held(failure)

    async def _prepare_patiently(self) -> list[Node]:
        """Return the routes; a server that loads its data, or a cluster that is not complete, is given some time."""
        patient_until = asyncio.get_running_loop().time() + PATIENCE
        while True:
            try:
                return await self._prepare()
            except ReplyError as error:
                if error.code not in _NOT_NOW or asyncio.get_running_loop().time() >= patient_until:
                    raise _failure(self.address, "opening", error) from error
            await asyncio.sleep(_SOON)

    async def _prepare(self) -> list[Node]:
        """Find the servers, check them, and load the library."""
        endpoints = await find_primaries(self.address)
        nodes = {endpoint: self._node(endpoint) for endpoint in dict.fromkeys(endpoints)}
        connections = {endpoint: await node.connected() for endpoint, node in nodes.items()}
        primaries = list(connections.values())
        self._warning = await examine(self.address, primaries)
        home = connections[endpoints[0]]
        self.store_id = await found_store(self.address, home, primaries, reads_only=self._reads_only)
        for node in nodes.values():
            try:
                await node.load()
            except ReplyError as error:
                if error.code != "OOM":  # with a full memory it may have them, and whoever opens may want to purge
                    raise
        return [nodes[endpoint] for endpoint in endpoints]

    def _leave_behind(self) -> None:
        if self.after_fork is not None:
            self.after_fork()

    def _release_held(self, error: Exception | None) -> None:
        held, self._held = self._held, []
        for then in held:
            call_back(then, error)

    def _node(self, endpoint: Endpoint) -> Node:
        if endpoint not in self._nodes:
            self._nodes[endpoint] = Node(self.address, endpoint, self._frame, self)
        return self._nodes[endpoint]

    # Refusals and failures.

    def refused(self, node: Node, group: Group, error: ReplyError) -> None:
        """Send a call that was not executed again, or fail it."""
        now = asyncio.get_running_loop().time()
        first = group.patient_until is None
        if group.patient_until is None:
            group.patient_until = now + PATIENCE
        if self.lifetime.over or now >= group.patient_until:
            group.fail(StoreError(f"{self.address}: {group.verb!r} was refused: {error}"))
        elif error.code == "MOVED":
            self._routes_of(group)[group.partition] = self._node(_target(error, node.endpoint))
            self._find()
            if first:
                self._repeat(group)
            else:  # two servers that send a call to each other have not agreed yet
                self._repeat_soon(group)
        elif error.code in _NOT_NOW:
            self._repeat_soon(group)
        elif error.code == "READONLY":
            self._find()
            self._repeat_soon(group)
        elif error.code == "NOSCRIPT" or "unction not found" in str(error):
            self._load(node, group)
        else:
            group.fail(_failure(self.address, group.verb, error))

    def lost(self, group: Group, error: StoreError) -> None:
        """Fail a call whose answer is lost, or send it again if it only reads."""
        now = asyncio.get_running_loop().time()
        if group.patient_until is None:
            group.patient_until = now + PATIENCE
        if group.verb in self._library.reading and not self.lifetime.over and now < group.patient_until:
            self._repeat_soon(group)
        else:
            self.give_up(group, error)

    def give_up(self, group: Group, error: StoreError) -> None:
        """Fail a call that may have been executed."""
        if group.number is not None:
            self.on_given_up(group.partition, group.number)
        group.fail(error)

    def unreachable(self, node: Node) -> None:
        """Find out whether other servers have taken over."""
        if self._routes is not None and not self.lifetime.over:
            self._find()

    def _routes_of(self, group: Group) -> list[Node]:
        assert self._routes is not None, f"{group.verb} was sent before the store was open"
        return self._routes

    def _repeat(self, group: Group) -> None:
        self._repeats.pop(group, None)
        self._routes_of(group)[group.partition].repeat(group)

    def _repeat_soon(self, group: Group) -> None:
        self._repeats[group] = asyncio.get_running_loop().call_later(_SOON, self._repeat, group)

    def _load(self, node: Node, group: Group) -> None:
        """Load the library into a server that does not know it, then repeat the call."""
        if node.endpoint not in self._loading:
            task = asyncio.get_running_loop().create_task(node.load(), name="redis load")
            self._loading[node.endpoint] = task
            task.add_done_callback(lambda _: self._loading.pop(node.endpoint, None))

        def loaded(task: "asyncio.Task[None]") -> None:
            error = None if task.cancelled() else task.exception()
            if isinstance(error, ReplyError) and error.code not in _NOT_NOW:
                group.fail(_failure(self.address, "loading the functions", error))
            elif self.lifetime.over:
                group.fail(StoreError("the store was closed while this waited"))
            else:
                self._repeat_soon(group) if error is not None else self._repeat(group)

        self._loading[node.endpoint].add_done_callback(loaded)

    def _find(self) -> None:
        """Look for the primaries again, unless there is only one server."""
        alone = self.address.topology is Topology.SINGLE and len(self.address.endpoints) == 1
        if not alone and self._finding is None and not self.lifetime.over:
            self._finding = asyncio.get_running_loop().create_task(self._find_again(), name="redis find")

    async def _find_again(self) -> None:
        try:
            endpoints = await find_primaries(self.address, self._nodes)
        except StoreError:
            return  # a node that is needed asks again
        finally:
            self._finding = None
        self._routes = routes = [self._node(endpoint) for endpoint in endpoints]
        for node in [node for node in self._nodes.values() if node not in routes]:
            for group in node.take_waiting():
                self._repeat(group)


def _target(error: ReplyError, asked: Endpoint) -> Endpoint:
    """Return the server that a MOVED names; one without a host is on the host that was asked."""
    host, _, port = str(error).split(" ")[2].rpartition(":")
    return host or asked[0], int(port)


def _failure(address: Address, verb: str, error: ReplyError) -> StoreError:
    remedy = _REMEDIES.get(error.code, "")
    return StoreError(f"{address}: {verb!r} failed: {error}{remedy and '; '}{remedy}")
