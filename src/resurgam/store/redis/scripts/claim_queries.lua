-- Lease queries, oldest first; those past their deadline are deleted.
-- The answer is how many are left, and the leased ones as JSON.
-- part: queues, limit
-- writes: queries-<queue> ZSET of ids by unlock, query-<id> HASH, queries ZSET,
--   asked-<execution id> SET

local function claim_queries(call, part)
  local queues, limit = part[1], part[2]
  queries.drop_expired(call)
  local answer = { 0 }
  for _, query in ipairs(queries.claimable(call, queues, limit)) do
    local id, queue = query[2], query[3]
    answer[#answer + 1] = redis.call('HGET', call.prefix .. 'query-' .. id, 'task')
    redis.call('HSET', call.prefix .. 'query-' .. id, 'owner', call.owner, 'claim', call.number)
    redis.call('ZADD', call.prefix .. 'queries-' .. queue, (call.now + call.lease) * 1000, id)
    note_due(call, queue, call.now + call.lease)
  end
  answer[1] = queries.count(call, queues)
  return answer
end
