-- Lease queries, oldest first, and return them as JSON; those past their deadline are deleted.
-- part: queues, limit
-- writes: queries-<queue> ZSET of ids by unlock, query-<id> HASH, queries ZSET,
--   asked-<execution id> SET

local function claim_queries(call, part)
  local queues, limit = part[1], part[2]
  queries.drop_expired(call)
  local tasks = {}
  for number, query in ipairs(queries.claimable(call, queues, limit)) do
    local id, queue = query[2], query[3]
    tasks[number] = redis.call('HGET', call.prefix .. 'query-' .. id, 'task')
    redis.call('ZADD', call.prefix .. 'queries-' .. queue, (call.now + call.lease) * 1000, id)
    note_due(call, queue, call.now + call.lease)
  end
  return tasks
end
