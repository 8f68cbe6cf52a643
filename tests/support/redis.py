"""Real Redis servers for tests: one per test process, started when the first test needs it."""

import asyncio
import atexit
import functools
import itertools
import shutil
import tempfile
from pathlib import Path
from typing import Final
from weakref import WeakKeyDictionary

from resurgam.dev.redis import Cluster, Server
from resurgam.store.redis.node import Node
from resurgam.store.redis.store import RedisStore
from resurgam.store.redis.watcher import Watcher

_stores = itertools.count(1)

_HEARD: Final = 60.0
"""Seconds within which a message must arrive."""


def temporary_folder() -> Path:
    """Return a new folder that is removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="resurgam-redis-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def shared_server() -> Server:
    """Return the server of this process; nothing that it holds survives."""
    server = Server(temporary_folder()).start()
    atexit.register(server.kill)
    return server


@functools.cache
def shared_cluster() -> Cluster:
    """Return the cluster of three servers of this process."""
    cluster = Cluster(temporary_folder())
    atexit.register(cluster.kill)
    return cluster.start()


_DURABLE: Final = ("--appendonly", "yes", "--appendfsync", "always")
"""The options of a server that loses nothing, and of which a store therefore says nothing."""


@functools.cache
def durable_server() -> Server:
    """Return the server of this process that loses nothing."""
    server = Server(temporary_folder(), *_DURABLE).start()
    atexit.register(server.kill)
    return server


@functools.cache
def durable_cluster() -> Cluster:
    """Return the cluster of this process that loses nothing."""
    cluster = Cluster(temporary_folder(), *_DURABLE)
    atexit.register(cluster.kill)
    return cluster.start()


def fresh_cluster_url(options: str = "") -> str:
    """Return the URL of a store that is empty, on the shared cluster."""
    return f"{shared_cluster().url}?prefix=t{next(_stores)}{options and '&'}{options}"


def durable_url(*, cluster: bool = False) -> str:
    """Return the URL of a store that is empty and loses nothing."""
    return f"{(durable_cluster() if cluster else durable_server()).url}?prefix=t{next(_stores)}"


def fresh_url(options: str = "") -> str:
    """Return the URL of a store that is empty, on the shared server."""
    return f"{shared_server().url}?prefix=t{next(_stores)}{options and '&'}{options}"


_OUTSIDE: Final = ("fcall", "ping", "info", "config", "subscribe", "unsubscribe")
"""Commands that no function calls."""


def commands_of_functions() -> int:
    """Return how many commands the functions of all stores on the shared server have called so far."""
    count = 0
    for line in shared_server().ask("INFO", "commandstats").decode().splitlines():
        name, _, figures = line.removeprefix("cmdstat_").partition(":calls=")
        if figures and name.partition("|")[0] not in _OUTSIDE:
            count += int(figures.partition(",")[0])
    return count


async def effects_arrived(store: RedisStore) -> None:
    """Wait until the effects of the commits of a store have arrived, and the answers to them."""
    await store._outbox.arrived()


class Ears:
    """Learn when a store has heard everything that was published until now: the messages of a server arrive in order."""

    def __init__(self, store: RedisStore) -> None:
        self.messages = 0
        """How many messages the store has heard."""

        self._link = store._link
        self._subscriptions = store._watcher.subscriptions
        self._channel = f"{self._link.address.prefix}until now {self._link.owner}"
        self._on_message = self._subscriptions.on_message
        self._subscriptions.on_message = self._heard
        self._marks: dict[bytes, asyncio.Event] = {}
        self._numbers = itertools.count(1)
        self._holds = False

    async def heard_all(self) -> None:
        """Wait until all messages have arrived."""
        if not self._subscriptions.is_connected:
            return
        if not self._holds:
            self._holds = True
            await self._subscriptions.hold([self._channel])
        async with asyncio.timeout(_HEARD):
            await asyncio.gather(*(self._heard_of(node) for node in self._link.nodes))

    async def _heard_of(self, node: Node) -> None:
        """Wait for a message that follows all others of a server."""
        mark = b"%d" % next(self._numbers)
        self._marks[mark] = asyncio.Event()
        await (await node.connected()).ask("PUBLISH", self._channel, mark)
        await self._marks[mark].wait()
        del self._marks[mark]

    def _heard(self, channel: str, message: bytes) -> None:
        if channel == self._channel:
            self._marks[message].set()
        else:
            self.messages += 1
            self._on_message(channel, message)


_ears: WeakKeyDictionary[Watcher, Ears] = WeakKeyDictionary()


def ears_of(store: RedisStore) -> Ears:
    """Return the ears of a store."""
    watcher = store._watcher
    if watcher not in _ears:
        _ears[watcher] = Ears(store)
    return _ears[watcher]


def is_busy(store: RedisStore) -> bool:
    """Whether calls of a store are under way, looks of its waiters, or effects of its commits."""
    looks = any(waiter.is_looking for waiter in store._watcher.waiters.all)
    return looks or store._link.is_busy or store._outbox.is_busy
