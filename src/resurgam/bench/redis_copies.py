"""Copy sleeping workflows on Redis servers: a script copies all their keys under new ids; only the feed has no copies."""

from collections.abc import Sequence
from typing import Final

import msgspec

from resurgam.bench.servers import Servers, primaries
from resurgam.store.redis.connection import Connection, ReplyError

_AT_ONCE: Final = 500
"""Copies that one script call makes, so that the server answers others in between."""

_IDS: Final = ("entity_id", "run_id", "tree_id")
_SHARED: Final = ("timers", "created", "by-status-running", "by-name-sleeper", "named-running-sleeper")

_COPY: Final = """
local prefix, first, count = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
local ids, keys, shared = unpack(cmsgpack.unpack(ARGV[3]))
local function renamed(text, number)
  for _, id in ipairs(ids) do
    local fresh = string.sub(id, 1, -9) .. string.format('%08x', number)
    local place = string.find(text, id, 1, true)
    if place then text = string.sub(text, 1, place - 1) .. fresh .. string.sub(text, place + #id) end
  end
  return text
end
local function all_renamed(list, number)
  local found = {}
  for place, text in ipairs(list) do found[place] = renamed(text, number) end
  return found
end
local stored = {}
for place, key in ipairs(keys) do
  local kind = redis.call('TYPE', key).ok
  local value
  if kind == 'string' then value = { redis.call('GET', key) }
  elseif kind == 'hash' then value = redis.call('HGETALL', key)
  elseif kind == 'list' then value = redis.call('LRANGE', key, 0, -1)
  elseif kind == 'set' then value = redis.call('SMEMBERS', key)
  elseif kind == 'stream' then value = redis.call('XRANGE', key, '-', '+')
  elseif kind == 'zset' then
    value = {}
    local found = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    for number = 1, #found, 2 do value[number], value[number + 1] = found[number + 1], found[number] end
  end
  stored[place] = { key, kind, value }
end
local WRITES = { string = 'SET', hash = 'HSET', list = 'RPUSH', set = 'SADD', zset = 'ZADD' }
for number = first, first + count - 1 do
  for _, one in ipairs(stored) do
    local key, kind, value = renamed(one[1], number), one[2], one[3]
    if kind == 'stream' then
      for _, entry in ipairs(value) do redis.call('XADD', key, entry[1], unpack(all_renamed(entry[2], number))) end
    else
      redis.call(WRITES[kind], key, unpack(all_renamed(value, number)))
    end
  end
  for key, member in pairs(shared) do
    redis.call('ZADD', key, redis.call('ZSCORE', key, member), renamed(member, number))
  end
end
return 1
"""
"""Copy the keys of one execution some times: those with its ids in their names, and its members of shared ZSETs."""


async def copy_sleepers(servers: Servers, name: str, number: int) -> int:
    """Copy a sleeper of each partition of a store until there are *number* copies; return how many there are."""
    prefix, copied = servers.prefix(name), 0
    async with primaries(servers.address) as connections:
        partitions = servers.address.partitions
        share = -(-number // partitions)
        for partition in range(partitions):
            key = f"{prefix}{{p{partition:02d}}}:"
            for connection in connections:
                copied += await _copy(connection, key, min(share, number - copied))
    return copied


async def _copy(connection: Connection, prefix: str, number: int) -> int:
    """Copy a sleeper of a partition, unless it is on another server."""
    try:
        members: Sequence[bytes] = await connection.ask("ZRANGE", f"{prefix}timers", 0, 0)
    except ReplyError:
        return 0
    if not members:
        return 0
    execution_id = members[0].decode()
    fields = await connection.ask("HMGET", f"{prefix}state-{execution_id}", *_IDS)
    ids = [*dict.fromkeys([execution_id, *(field.decode() for field in fields)])]
    own = [key for one in ids for key in await _keys_of(connection, prefix, one)]
    shared = [key for name in _SHARED if await connection.ask("ZSCORE", key := f"{prefix}{name}", execution_id)]
    what = msgspec.msgpack.encode([ids, [*dict.fromkeys(own)], dict.fromkeys(shared, execution_id)])
    for first in range(0, number, _AT_ONCE):
        await connection.ask("EVAL", _COPY, 1, prefix, first, min(_AT_ONCE, number - first), what)
    return number


async def _keys_of(connection: Connection, prefix: str, one: str) -> list[str]:
    """Return the keys whose names end with an id."""
    kinds = ("instances", "state", "events", "pending", "schemas", "entities", "by-tree")
    return [key for kind in kinds if await connection.ask("EXISTS", key := f"{prefix}{kind}-{one}")]
