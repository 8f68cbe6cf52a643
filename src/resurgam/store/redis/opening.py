"""What is checked when a store is opened: one clear error for what cannot work, a warning for what can be lost."""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from secrets import token_hex
from typing import Any, Final

import msgspec

from resurgam.core.errors import StoreError
from resurgam.store.redis.connection import Connection, ReplyError
from resurgam.store.redis.discovery import tag_of
from resurgam.store.redis.url import Address, Topology, text_of

_logger: Final = logging.getLogger("resurgam.store")

_NEEDED: Final = ("FCALL", "FUNCTION", "XADD")
"""Commands without which a server is too old."""

_FORMAT: Final = b"2"
"""The version of the layout of the keys."""

_SCANNED: Final = 1000
"""Keys that one step of the search for foreign keys looks at."""


class Server(msgspec.Struct, frozen=True):
    """What a server says about itself; what it keeps to itself is missing."""

    where: str
    info: Mapping[str, str]
    config: Mapping[str, str]


async def examine(address: Address, connections: Iterable[Connection]) -> str | None:
    """Check every primary of a store; log what was found, or return it as a warning if acknowledged work can be lost."""
    servers = []
    for connection in connections:
        servers.append(server := await describe(connection))
        await _check_commands(address, connection)
        _check_topology(address, server)
        _check_eviction(address, server)
    found, losses = describe_persistence(servers[0]), possible_losses(address, servers)
    if losses:
        return f"{address}: {found}; acknowledged work can be lost: {'; '.join(losses)}"
    _logger.info("%s: %s", address, found)
    return None


async def found_store(address: Address, home: Connection, primaries: Sequence[Connection], *, reads_only: bool) -> str:
    """Return the id of the store; create it if there is none and no key stands in the way, unless it *reads_only*.

    *home* is the connection to the server of partition 0, where the hash ``meta`` is.
    """
    key = f"{address.prefix}{{{tag_of(0)}}}:meta"
    meta = await _read_meta(home, key)
    if not meta and reads_only:
        raise StoreError(f"{address}: there is no store under the prefix {address.prefix!r}")
    if not meta:
        foreign = await _find_foreign(address, primaries)
        if foreign is not None and not (meta := await _read_meta(home, key)):  # another process may have been faster
            raise StoreError(
                f"{address}: there are keys that begin with {address.prefix!r} and are not Resurgam's, such as {foreign!r}; "
                "choose another prefix, such as ?prefix=workflows"
            )
        await home.ask("HSETNX", key, "partitions", address.partitions)
        await home.ask("HSETNX", key, "format", _FORMAT)
        await home.ask("HSETNX", key, "id", token_hex(8))
        meta = await _read_meta(home, key)
    if meta.get(b"format", _FORMAT) != _FORMAT:
        raise StoreError(
            f"{address}: the data has format {meta[b'format'].decode()}, and this version of Resurgam reads format "
            f"{_FORMAT.decode()}; use the version that wrote it, or another prefix, such as ?prefix=workflows"
        )
    partitions = int(meta[b"partitions"])
    if partitions != address.partitions:
        raise StoreError(
            f"{address}: the store was created with {partitions} partitions, and the URL says {address.partitions}; "
            f"the number cannot change, write ?partitions={partitions}"
        )
    return meta[b"id"].decode()


async def describe(connection: Connection) -> Server:
    """Return what a server tells this user of itself."""
    info: dict[str, str] = {}
    for section in ("server", "memory", "persistence", "replication", "cluster"):
        text = await _ask_if_allowed(connection, "INFO", section)
        lines = text.decode(errors="replace").splitlines() if isinstance(text, bytes) else ()
        info.update({name: value for name, colon, value in (line.partition(":") for line in lines) if colon})
    config: dict[str, str] = {}
    for name in ("appendfsync", "save"):
        found = await _ask_if_allowed(connection, "CONFIG", "GET", name)
        if isinstance(found, dict):
            config.update({key.decode(): value.decode() for key, value in found.items()})
    return Server(text_of(connection.endpoint), info, config)


async def _ask_if_allowed(connection: Connection, *command: str) -> Any:
    """Return a reply; None if this user, or the vendor of the server, does not allow the command."""
    try:
        return await connection.ask(*command)
    except ReplyError:
        return None


async def _check_commands(address: Address, connection: Connection) -> None:
    known = await _ask_if_allowed(connection, "COMMAND", "INFO", *_NEEDED)
    if known is not None:
        missing = [name for name, found in zip(_NEEDED, known, strict=True) if not found]
        if missing:
            raise StoreError(
                f"{address}: the server {text_of(connection.endpoint)} is too old: it has no {missing[0]}; "
                "Redis 7.0 or Valkey is needed"
            )


def _check_topology(address: Address, server: Server) -> None:
    if address.topology is not Topology.CLUSTER and server.info.get("cluster_enabled") == "1":
        scheme = "rediss+cluster" if address.tls else "redis+cluster"
        raise StoreError(f"{address}: {server.where} belongs to a cluster; use {scheme}://")


def _check_eviction(address: Address, server: Server) -> None:
    policy = server.info.get("maxmemory_policy", "")
    if policy.startswith("allkeys"):
        raise StoreError(
            f"{address}: {server.where} drops keys when its memory is full (maxmemory-policy {policy}); "
            "set maxmemory-policy noeviction"
        )


# What can be lost.


def describe_persistence(server: Server) -> str:
    """Return how a server keeps its data, in a few words."""
    if server.info.get("aof_enabled") == "1":
        return f"append-only file, appendfsync {server.config.get('appendfsync', 'unknown')}"
    if server.info.get("aof_enabled") is None:
        return "the server does not say how it keeps its data"
    save = server.config.get("save")
    return "memory only" if save == "" else "no append-only file, snapshots only"


def possible_losses(address: Address, servers: Sequence[Server]) -> list[str]:
    """Return the ways in which acknowledged work can be lost, each in a sentence."""
    losses: list[str] = []
    for server in servers:
        losses += _losses_of(server)
        replicas = int(server.info.get("connected_slaves", "0"))
        fails_over = replicas > 0 or address.topology is not Topology.SINGLE or len(address.endpoints) > 1
        if address.wait > replicas:
            losses.append(f"wait={address.wait} cannot be fulfilled with {replicas} replicas")
        elif fails_over and address.wait == 0:
            losses.append("a failover loses what no replica has yet (?wait=1 waits for one)")
    return list(dict.fromkeys(losses))


def _losses_of(server: Server) -> list[str]:
    if server.info.get("aof_enabled") is None:
        return []
    if server.info["aof_enabled"] != "1":
        if server.config.get("save") == "":
            return ["a restart of the server loses everything (set appendonly yes)"]
        return ["a crash loses what came after the last snapshot (set appendonly yes)"]
    match server.config.get("appendfsync"):
        case "always":
            return []
        case "no":
            return ["a crash of its machine loses what the system has not written (set appendfsync always)"]
        case _:
            return ["a crash of its machine loses up to two seconds (set appendfsync always)"]


# The keys of the store.


async def _read_meta(home: Connection, key: str) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = await home.ask("HGETALL", key)
    return found if found.keys() >= {b"partitions", b"format", b"id"} else {}


async def _find_foreign(address: Address, primaries: Sequence[Connection]) -> str | None:
    """Return a key that begins with the prefix and is not of the form of the store's own.

    Own ones without ``meta`` are those of engines that went on after somebody had emptied the server.
    """
    pattern = re.sub(r"([*?\[\]\\^-])", r"\\\1", address.prefix) + "*"
    own = re.compile(re.escape(address.prefix.encode()) + rb"\{p\d+\}:")
    for connection in primaries:
        cursor: bytes = b"0"
        while True:
            cursor, keys = await connection.ask("SCAN", cursor, "MATCH", pattern, "COUNT", _SCANNED)
            foreign = next((key for key in keys if not own.match(key)), None)
            if foreign is not None:
                return str(foreign.decode(errors="replace"))
            if cursor == b"0":
                break
    return None
