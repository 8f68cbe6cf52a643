"""Real Redis servers for tests: one per test process, started when the first test needs it."""

import asyncio
import atexit
import functools
import itertools
import shutil
import tempfile
from pathlib import Path

from resurgam.dev.redis import Cluster, Server
from resurgam.store.redis.store import RedisStore

_stores = itertools.count(1)


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


def fresh_cluster_url(options: str = "") -> str:
    """Return the URL of a store that is empty, on the shared cluster."""
    return f"{shared_cluster().url}?prefix=t{next(_stores)}{options and '&'}{options}"


def fresh_url(options: str = "") -> str:
    """Return the URL of a store that is empty, on the shared server."""
    return f"{shared_server().url}?prefix=t{next(_stores)}{options and '&'}{options}"


async def effects_arrived(store: RedisStore) -> None:
    """Wait until the effects of the commits of a store have arrived, and the answers to them."""
    while ways := list(store._outbox._tasks.values()):
        await asyncio.wait(ways)
