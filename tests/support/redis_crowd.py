"""A Redis store with very many executions, written straight into its keys by a script.

What belongs to lists is as the store writes it: the state, the instance as JSON, the executions of an entity, the indexes.
There are no logs. Every execution is of an entity of its own; the larger its number, the later it was created, and the
values of an execution follow from its number, so that `Crowd.expected` can say what a list must return.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from zlib import crc32

import msgspec

from resurgam.core import event as events
from resurgam.core.location import Location
from resurgam.core.state import Status
from resurgam.dev.process import HOST
from resurgam.dev.redis import Server
from resurgam.store import records as r
from resurgam.store.encoding import encode
from resurgam.store.redis.connection import Connection
from resurgam.store.redis.store import RedisStore
from resurgam.store.redis.transfer import _state_of

_AT_ONCE = 500
_BEGINNING = 1_000_000_000_000

_FILL = """
local prefix = KEYS[1]
for _, one in ipairs(cmsgpack.unpack(ARGV[1])) do
  local id, entity_id, instance, state, indexes, created_at, ended, closed_at = unpack(one, 1, 8)
  redis.call('SET', prefix .. 'instances-' .. id, instance)
  redis.call('HSET', prefix .. 'state-' .. id, unpack(state))
  redis.call('RPUSH', prefix .. 'entities-' .. entity_id, id)
  for _, name in ipairs(indexes) do redis.call('ZADD', prefix .. name, created_at, id) end
  for _, name in ipairs(ended) do redis.call('ZADD', prefix .. name, closed_at, id) end
end
"""


def _chance(number: int, what: bytes) -> int:
    """Return a number below 1,000 by which an execution gets a property, as if by chance."""
    return crc32(b"%d %b" % (number, what)) % 1000


def instance_of(number: int) -> r.Instance:
    """Return the execution with a number. The distributions are skewed, and do not follow the order of creation."""
    chance = _chance(number, b"status")
    status = Status.FAILED if chance < 5 else Status.RUNNING if chance < 55 else Status.COMPLETED
    created_at = _BEGINNING + number // 3
    chance = _chance(number, b"name")
    name = "rare" if chance < 2 else "some" if chance < 300 else "most"
    chance = _chance(number, b"region")
    region = "aq" if chance < 2 else "us" if chance < 300 else "eu"
    tags = {"region": region, "customer": f"c{_chance(number, b'customer')}"}
    tags |= {name: "yes" for name in ("vip", "large") if _chance(number, name.encode()) < 200}
    parent = None
    if number % 5 == 0:
        parent = events.Parent(
            entity_id=f"p{number // 5 % 100}", run_id="r", execution_id="e", location=Location((1,)), key=f"k{number}"
        )
    return r.Instance(
        entity_id=f"order-{number}",
        execution_id=f"{number:012d}",
        run_id=f"r{number}",
        tree_id=f"t{number // 40}",
        generation=0,
        attempt=1,
        queue="default",
        kind="flow" if _chance(number, b"kind") < 2 else "workflow",
        name=name,
        status=status,
        created_at=created_at,
        closed_at=created_at + _chance(number, b"end") if status.terminal else None,
        deactivated=status.terminal,
        tags=tags,
        parent=parent,
        failure="ValueError" if status is Status.FAILED else None,
    )


def _written(one: r.Instance) -> list[object]:
    """Return the keys of an execution."""
    fields = _state_of(r.Copy(instance=one, log=()))
    state = [item for field in fields.items() if field[1] is not None for item in field]
    indexes = ["created", f"by-status-{one.status}", f"by-name-{one.name}", f"named-{one.status}-{one.name}"]
    indexes += [f"by-tree-{one.tree_id}", *(f"by-tag-{name}={value}" for name, value in one.tags.items())]
    indexes += [] if one.kind == "workflow" else [f"by-kind-{one.kind}"]
    indexes += [] if one.failure is None else [f"by-failure-{one.failure}"]
    indexes += [] if one.parent is None else [f"by-parent-{one.parent.entity_id}"]
    ended = [f"ended-{one.status}", f"ended-named-{one.status}-{one.name}"] if one.status.terminal else []
    return [one.execution_id, one.entity_id, encode(one), state, indexes, one.created_at, ended, one.closed_at or 0]


class Crowd:
    """Executions with the numbers from 1 on in a store."""

    def __init__(self, store: RedisStore, server: Server, size: int) -> None:
        self.store = store
        self.server = server
        self.size = size

    async def fill(self, first: int = 1) -> None:
        """Write the executions from a number on."""
        link = self.store._link
        await link.any_primary()
        [node] = link.nodes
        connection = await node.connected()
        batches: dict[int, list[list[object]]] = {}
        for number in range(first, self.size + 1):
            one = instance_of(number)
            partition = link.partition_of(one.entity_id)
            batch = batches.setdefault(partition, [])
            batch.append(_written(one))
            if len(batch) == _AT_ONCE:
                await self._write(connection, partition, batches.pop(partition))
        for partition, batch in batches.items():
            await self._write(connection, partition, batch)

    async def _write(self, connection: Connection, partition: int, batch: list[list[object]]) -> None:
        await connection.ask("EVAL", _FILL, 1, self.store._link.keys[partition], msgspec.msgpack.encode(batch))

    def expected(self, query: r.Query) -> list[str]:
        """Return the ids of the page that a query must return."""
        newest_first = map(instance_of, range(self.size, 0, -1))
        fitting = (one.execution_id for one in newest_first if query.fits(one))
        return list(islice(fitting, query.limit))

    def expected_ends(self, query: r.EndedQuery) -> list[str]:
        """Return the ids of the complete executions that a query must return."""
        fitting = (one for one in map(instance_of, range(1, self.size + 1)) if query.fits(one))
        in_order = sorted(fitting, key=lambda one: (one.closed_at or 0, one.execution_id))
        return [one.execution_id for one in in_order[: query.limit]]


class Reads:
    """What functions have read: members of indexes, members that were looked up in others, executions, commands."""

    def __init__(self) -> None:
        self.members = self.looked_up = self.executions = self.commands = 0

    def __str__(self) -> str:
        return f"{self.members} members, {self.looked_up} looked up, {self.executions} executions, {self.commands} commands"

    def count(self, command: list[str], server: Server) -> None:
        """Count a command."""
        self.commands += 1
        match command:
            case ["ZRANGE", key, first, last, *_]:
                size = int(server.ask("ZCARD", key))
                self.members += max(0, min(int(last), size - 1) - int(first) + 1)
            case ["ZMSCORE", _, *ids]:
                self.looked_up += len(ids)
            case ["HGETALL", key] if "state-" in key:
                self.executions += 1


@contextmanager
def reads_of(server: Server) -> Iterator[Reads]:
    """Count what functions read on a server inside the ``with``."""
    reads, mark = Reads(), "the end of what is counted"
    with socket.create_connection((HOST, server.port)) as monitor:
        monitor.sendall(b"MONITOR\r\n")
        lines = monitor.makefile("r", encoding="utf-8", errors="replace", newline="\n")
        assert lines.readline().startswith("+OK")
        yield reads
        server.ask("ECHO", mark)
        for line in lines:
            if mark in line:
                return
            _, inside, command = line.rstrip("\r\n").partition(" lua] ")
            if inside:
                reads.count(command.strip('"').split('" "'), server)
