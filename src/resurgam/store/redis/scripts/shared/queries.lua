-- uses: notices, unlock
-- Queries for workers, each kept until its deadline, answered or not.
-- keys: query-<query id> HASH: task, queue, execution_id, until, result; queries ZSET of ids by deadline;
--   queries-<queue> ZSET of unanswered ones by unlock; asked-<execution id> SET of ids

local queries = {}

local QUERIES_AT_ONCE = 100 -- queries that one call deletes at most, so that it stays short

function queries.drop(call, id)
  local key = call.prefix .. 'query-' .. id
  local fields = redis.call('HMGET', key, 'queue', 'execution_id')
  redis.call('DEL', key)
  redis.call('ZREM', call.prefix .. 'queries', id)
  if fields[1] then
    redis.call('ZREM', call.prefix .. 'queries-' .. fields[1], id)
    redis.call('SREM', call.prefix .. 'asked-' .. fields[2], id)
  end
end

function queries.drop_expired(call)
  local expired =
    redis.call('ZRANGE', call.prefix .. 'queries', '-inf', call.now, 'BYSCORE', 'LIMIT', 0, QUERIES_AT_ONCE)
  for _, id in ipairs(expired) do queries.drop(call, id) end
end

-- Delete the queries of an execution that is purged. Waiters for their results are told.
local function drop_queries_of(call, execution_id)
  for _, id in ipairs(redis.call('SMEMBERS', call.prefix .. 'asked-' .. execution_id)) do
    queries.drop(call, id)
    note_query(call, id)
  end
end

-- Return the state of a query, 'gone', 'open' or 'answered', and its result.
function queries.state(call, id)
  local fields = redis.call('HMGET', call.prefix .. 'query-' .. id, 'until', 'result')
  if not fields[1] or tonumber(fields[1]) <= call.now then return 'gone' end
  return fields[2] and 'answered' or 'open', fields[2]
end

-- Return up to limit queries that may be claimed, oldest first, each as its unlock, its id and its queue.
function queries.claimable(call, queues, limit)
  local found = {}
  local function is_open(id) return queries.state(call, id) == 'open' end
  for _, queue in ipairs(queues) do take_claimable(call, 'queries-', queue, limit, found, is_open) end
  table.sort(found, function(a, b) return a[1] < b[1] end)
  for number = #found, limit + 1, -1 do found[number] = nil end
  return found
end

-- Return how many queries are listed as claimable, also those past their deadline, which the next claim deletes.
function queries.count(call, queues)
  local count = 0
  for _, queue in ipairs(queues) do
    count = count + redis.call('ZCOUNT', call.prefix .. 'queries-' .. queue, '-inf', unlocked(call))
  end
  return count
end

-- Whether there is a query to be claimed.
function queries.are_waiting(call, queues)
  return #queries.claimable(call, queues, 1) > 0
end
