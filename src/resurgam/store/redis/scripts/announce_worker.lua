-- Register a worker, or renew it; return all live workers in the order in which they started.
-- part: id, announcement as JSON, milliseconds for which it is known
-- writes: workers ZSET of ids by the moment of their start, worker-<id> HASH: body, owner, started_at, seen_at, until

local function announce_worker(call, part)
  local id, body, ttl = part[1], part[2], part[3]
  local _, expired = workers.known(call)
  for _, old in ipairs(expired) do workers.drop(call, old) end
  local key = call.prefix .. 'worker-' .. id
  local started_at = redis.call('HGET', key, 'started_at') or call.now
  redis.call('HSET', key, 'body', body, 'owner', call.owner, 'started_at', started_at, 'seen_at', call.now,
    'until', call.now + ttl)
  redis.call('ZADD', call.prefix .. 'workers', started_at, id)
  return workers.show(call, (workers.known(call)))
end
