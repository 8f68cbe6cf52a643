"""Measure on the servers of a Redis URL: each store has a prefix of its own, and its keys are deleted afterwards."""

import asyncio
import contextlib
import re
import socket
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import hiredis
import msgspec
from msgspec.structs import replace

from resurgam.bench.raw import commits_of
from resurgam.core import event as events
from resurgam.core.errors import StoreError
from resurgam.core.event import encode_event
from resurgam.core.outcome import ActivityRequest
from resurgam.store.redis.connection import Connection, connect, pack
from resurgam.store.redis.discovery import find_primaries
from resurgam.store.redis.opening import describe, describe_persistence
from resurgam.store.redis.url import Address, Topology, parse

_SCANNED: Final = 1000
"""Keys that one step of the cleaning looks at."""

_RAW: Final = """
local prefix = KEYS[1]
for _, part in ipairs(cmsgpack.unpack(ARGV[1])) do
  local id, seq, covered = part[1], part[2], part[3]
  local count = (#part - 3) / 2
  local position = redis.call('HINCRBY', prefix .. 'counters', 'feed', count)
  local reference = string.format('%d-%d', position, count)
  for place = 4, #part, 2 do
    redis.call('XADD', prefix .. 'events-' .. id, string.format('%d-0', seq), 'type', part[place], 'body', part[place + 1],
      'reference', reference)
    seq = seq + 1
  end
  local last_seq = string.format('%d', seq - 1)
  redis.call('XADD', prefix .. 'feed', reference, 'execution_id', id, 'seq', last_seq)
  if covered == '' then
    redis.call('DEL', prefix .. 'covered-' .. id)
  else
    redis.call('SET', prefix .. 'covered-' .. id, covered)
  end
  redis.call('HSET', prefix .. 'state-' .. id, 'last_seq', last_seq)
end
return 1
"""
"""A commit without any rule: it writes the keys that a step writes, for some instances."""


@dataclass(frozen=True)
class Servers:
    """Stores under prefixes that begin alike, on the servers of a URL."""

    address: Address
    server: str
    _url: str = field(repr=False)

    @property
    def shared(self) -> bool:
        """Whether processes can share a store: they can."""
        return True

    def __str__(self) -> str:
        return f"{self.address} under the prefix {self.address.prefix}"

    def url(self, name: str) -> str:
        """Return the URL of a store with a prefix of its own."""
        parts = urlsplit(self._url)
        options = [option for option in parse_qsl(parts.query) if option[0] != "prefix"]
        return urlunsplit(parts._replace(query=urlencode([*options, ("prefix", self.prefix(name))])))

    def prefix(self, name: str) -> str:
        """Return what the keys of a store with this name begin with."""
        return f"{self.address.prefix}{name}:"

    def file(self, name: str) -> Path | None:
        """Return None: a store on a server has no file here."""
        return None

    @contextlib.contextmanager
    def raw(self, name: str = "raw") -> "Iterator[RawServer | None]":
        """Connect for script calls one after another; None unless there is one server, which is asked in plain text."""
        if self.address.topology is not Topology.SINGLE or self.address.tls:
            yield None
            return
        with contextlib.closing(RawServer(self.address, f"{self.prefix(name)}{{p00}}:")) as server:
            yield server

    async def calls(self, history: Sequence[events.Event], times: int) -> Sequence[float]:
        """Call the script of the raw limit through a connection as stores have it, on the loop; none on other servers."""
        with self.raw("calls") as server:
            if server is None:
                return ()
            connection = await connect(self.address, self.address.endpoints[0])
            try:
                return [await _in_turn(connection, server.prepare(history)) for _ in range(times)]
            finally:
                connection.close()

    @property
    def originals(self) -> int:
        """How many workflows must sleep so that each partition very likely has one."""
        return 8 * self.address.partitions

    async def copy_sleepers(self, name: str, number: int) -> int:
        """Copy a sleeper of each partition of a store until there are *number* copies; return how many there are."""
        from resurgam.bench.redis_copies import copy_sleepers  # noqa: PLC0415 -- it needs this module

        return await copy_sleepers(self, name, number)

    async def memory(self) -> int | None:
        """Return the bytes that the servers have allocated."""
        async with primaries(self.address) as connections:
            found = [await describe(connection) for connection in connections]
        return sum(int(server.info["used_memory"]) for server in found)


class RawServer:
    """A connection to one server that waits for each answer, without an engine and without asyncio."""

    def __init__(self, address: Address, prefix: str) -> None:
        self._prefix = prefix
        self._instances = 0
        self._reader = hiredis.Reader()
        self._socket = socket.create_connection(address.endpoints[0])
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.password is not None:
            self._ask("AUTH", address.user or "default", address.password)
        if address.database:
            self._ask("SELECT", address.database)
        self._script: bytes = self._ask("SCRIPT", "LOAD", _RAW)

    def write(self, history: Sequence[events.Event], instances: int = 1) -> list[float]:
        """Write a history for some new instances together; return the seconds of each of its commits."""
        return [self._timed(call) for call in self.prepare(history, instances)]

    def prepare(self, history: Sequence[events.Event], instances: int = 1) -> list[bytes]:
        """Return the calls that write a history for some new instances together."""
        ids = [f"raw-{self._instances + number:020d}" for number in range(instances)]
        self._instances += instances
        return [self._call(commit, ids) for commit in commits_of(history)]

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def _call(self, commit: Sequence[events.Event], ids: Sequence[str]) -> bytes:
        log = [text for entry in commit for text in (entry.type, encode_event(entry).decode())]
        scheduled = [_request(entry) for entry in commit if isinstance(entry, events.ActivityScheduled)]
        parts = [[one, commit[0].seq, "".join(scheduled), *log] for one in ids]
        return pack("EVALSHA", self._script, 1, self._prefix, msgspec.msgpack.encode(parts))

    def _timed(self, call: bytes) -> float:
        begin = time.perf_counter()
        self._send(call)
        return time.perf_counter() - begin

    def _ask(self, *command: str | int) -> Any:
        return self._send(pack(*command))

    def _send(self, call: bytes) -> Any:
        self._socket.sendall(call)
        while (reply := self._reader.gets()) is False:
            received = self._socket.recv(65536)
            if not received:
                raise StoreError("the server has closed the connection that measures its limit")
            self._reader.feed(received)
        if isinstance(reply, Exception):
            raise StoreError(f"the server refuses to be measured: {reply}")
        return reply


async def _in_turn(connection: Connection, calls: Sequence[bytes]) -> float:
    """Make one call after another, each when the answer to the one before it is there; return the seconds of all."""
    done: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    left = iter(calls)
    begin = time.perf_counter()

    def go_on(reply: object) -> None:
        call = next(left, None)
        if isinstance(reply, Exception):
            done.set_exception(reply)
        elif call is None:
            done.set_result(time.perf_counter() - begin)
        else:
            connection.send(call, [go_on])

    go_on(None)
    return await done


def _request(entry: events.ActivityScheduled) -> str:
    request = ActivityRequest(ref=entry.seq, name=entry.name, queue=entry.queue, input=entry.input, entity_id="0" * 26)
    return msgspec.json.encode(request).decode()


@contextlib.contextmanager
def open_servers(url: str) -> Iterator[Servers]:
    """Choose a new prefix on the servers of *url*, and delete all keys under it afterwards."""
    address = parse(url)
    address = replace(address, prefix=f"{address.prefix.removesuffix(':')}-bench-{token_hex(4)}-")
    servers = Servers(address, asyncio.run(_settings(address)), url)
    try:
        yield servers
    finally:
        asyncio.run(_delete_all(address))


@contextlib.asynccontextmanager
async def primaries(address: Address) -> AsyncIterator[list[Connection]]:
    """Connect to every server that takes writes."""
    async with contextlib.AsyncExitStack() as opened:
        connections = []
        for endpoint in dict.fromkeys(await find_primaries(address)):
            connection = await connect(address, endpoint)
            opened.callback(connection.close)
            connections.append(connection)
        yield connections


async def _settings(address: Address) -> str:
    async with primaries(address) as connections:
        first, *_ = [await describe(connection) for connection in connections]
    info = first.info
    name = "Valkey" if info.get("server_name") == "valkey" else "Redis"
    version = info.get("valkey_version") or info.get("redis_version", "")
    number = f"{len(connections)} x " if len(connections) > 1 else ""
    policy = info.get("maxmemory_policy", "unknown")
    return f"{number}{name} {version}, {describe_persistence(first)}, maxmemory-policy {policy}, wait={address.wait}"


async def _delete_all(address: Address) -> None:
    pattern = re.sub(r"([*?\[\]\\^-])", r"\\\1", address.prefix) + "*"
    async with primaries(address) as connections:
        for connection in connections:
            cursor = b"0"
            while True:
                cursor, keys = await connection.ask("SCAN", cursor, "MATCH", pattern, "COUNT", _SCANNED)
                # One command each: in a cluster the keys of one command must be in one slot.
                connection.send(b"".join([pack("UNLINK", key) for key in keys]), [_ignore] * len(keys))
                if cursor == b"0":
                    break
            await connection.ask("PING")  # answered once everything is deleted


def _ignore(reply: object) -> None:
    """Take the reply to a deletion."""
