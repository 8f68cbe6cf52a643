-- Offer a query to the workers of its queue, unless there is no such execution; one that is there already stays as it is.
-- part: query id, entity id, execution id, queue, deadline, the query as JSON
-- reads: state-<execution id> HASH
-- writes: query-<id> HASH: task, queue, execution_id, until; queries ZSET of ids by deadline;
--   queries-<queue> ZSET of ids by unlock; asked-<execution id> SET of ids

local function submit_query(call, part)
  local id, entity_id, execution_id, queue, deadline, task = part[1], part[2], part[3], part[4], part[5], part[6]
  queries.drop_expired(call)
  if redis.call('HGET', call.prefix .. 'state-' .. execution_id, 'entity_id') ~= entity_id then return false end
  local key = call.prefix .. 'query-' .. id
  if redis.call('EXISTS', key) == 0 then
    redis.call('HSET', key, 'task', task, 'queue', queue, 'execution_id', execution_id, 'until', deadline)
    redis.call('SADD', call.prefix .. 'asked-' .. execution_id, id)
    redis.call('ZADD', call.prefix .. 'queries', deadline, id)
    redis.call('ZADD', call.prefix .. 'queries-' .. queue, unlock_now(call), id)
    note_work(call, queue)
  end
  return true
end
