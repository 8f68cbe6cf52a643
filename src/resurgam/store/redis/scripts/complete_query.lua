-- Keep the first result of a query that waits for one.
-- part: query id, result as JSON
-- writes: query-<id> HASH: result; queries-<queue> ZSET of ids by unlock

local function complete_query(call, part)
  local id, result = part[1], part[2]
  if queries.state(call, id) == 'open' then
    local key = call.prefix .. 'query-' .. id
    redis.call('HSET', key, 'result', result)
    redis.call('ZREM', call.prefix .. 'queries-' .. redis.call('HGET', key, 'queue'), id)
  end
  note_query(call, id)
end
