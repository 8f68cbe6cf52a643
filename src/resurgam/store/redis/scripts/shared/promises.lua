-- uses: inbox, instances
-- Promises: opened by commits, settled once. Each belongs to one execution.
-- keys: promise-<promise id> HASH, promises-<id> ZSET of open ones, settled-<id> ZSET of settled ones, both in the order of
--   opening

local promises = {}

local PROMISES_KEPT = 1000 -- rules.PROMISES_KEPT

local function key_of(call, promise_id)
  return call.prefix .. 'promise-' .. promise_id
end

local function open_key(call, execution_id)
  return call.prefix .. 'promises-' .. execution_id
end

local function settled_key(call, execution_id)
  return call.prefix .. 'settled-' .. execution_id
end

-- Take a promise from the execution that holds it; return its place there.
local function detach(call, promise_id, execution_id)
  local open, settled = open_key(call, execution_id), settled_key(call, execution_id)
  local place = redis.call('ZSCORE', open, promise_id) or redis.call('ZSCORE', settled, promise_id)
  redis.call('ZREM', open, promise_id)
  redis.call('ZREM', settled, promise_id)
  return place
end

local function forget_oldest(call, execution_id)
  local key = settled_key(call, execution_id)
  for _, old in ipairs(redis.call('ZRANGE', key, 0, -PROMISES_KEPT - 1)) do
    redis.call('ZREM', key, old)
    redis.call('DEL', key_of(call, old))
  end
end

local function mark_settled(call, promise_id, execution_id)
  local place = redis.call('ZSCORE', open_key(call, execution_id), promise_id)
  if place then
    redis.call('ZREM', open_key(call, execution_id), promise_id)
    redis.call('ZADD', settled_key(call, execution_id), place, promise_id)
    redis.call('HSET', key_of(call, promise_id), 'settled', 1)
  end
  forget_oldest(call, execution_id)
end

-- Give a promise to an execution, and take it from any other. One that the execution has already keeps its place.
function promises.keep(call, row, promise_id, name, schema, settled)
  local holder = redis.call('HGET', key_of(call, promise_id), 'execution_id')
  local place = holder and detach(call, promise_id, holder)
  if holder ~= row.id then
    instances.set(row, 'promised', (row.fields.promised or 0) + 1)
    place = row.fields.promised
  end
  redis.call('HSET', key_of(call, promise_id), 'execution_id', row.id, 'name', name, 'schema', schema, 'settled',
    settled and 1 or 0)
  redis.call('ZADD', settled and settled_key(call, row.id) or open_key(call, row.id), place, promise_id)
end

-- Open a promise, or open it again for a later attempt, unless its settlement waits in the inbox.
function promises.open(call, row, promise_id, name, schema)
  local known = redis.call('HGET', key_of(call, promise_id), 'execution_id') == row.id
  promises.keep(call, row, promise_id, name, schema, known and inbox.has_settlement(call, row, promise_id))
end

-- Mark a promise as settled that its execution no longer waits for.
function promises.close(call, row, promise_id)
  if redis.call('HGET', key_of(call, promise_id), 'execution_id') == row.id then
    mark_settled(call, promise_id, row.id)
  end
end

-- Settle a promise; return the row of its execution, or nil and 'missing' or 'settled'. A commit that closes an execution
-- may still settle its promises: the next attempt takes them over.
function promises.settle(call, promise_id, entry, closing)
  local holder, settled = unpack(redis.call('HMGET', key_of(call, promise_id), 'execution_id', 'settled'))
  local row = holder and instances.find(call, holder)
  if not row then return nil, 'missing' end
  if settled == '1' or (instances.is_closed(row) and row ~= closing) then return nil, 'settled' end
  mark_settled(call, promise_id, holder)
  inbox.put(call, row, { entry[1], entry[2], entry[3], promise_id }, { promise_id = promise_id })
  return row
end

-- Return the oldest open promise of a name; if none is open, the oldest.
function promises.named(call, row, name)
  for _, key in ipairs({ open_key(call, row.id), settled_key(call, row.id) }) do
    for _, promise_id in ipairs(redis.call('ZRANGE', key, 0, -1)) do
      if redis.call('HGET', key_of(call, promise_id), 'name') == name then return promise_id end
    end
  end
  return nil
end

-- Return a promise as its id, its name, its schema, and whether it is settled.
function promises.view(call, promise_id)
  local name, schema, settled = unpack(redis.call('HMGET', key_of(call, promise_id), 'name', 'schema', 'settled'))
  return { promise_id, name, schema, tonumber(settled) }
end

-- Return the promises of an execution, open and settled, in the order of opening.
function promises.of_execution(call, row)
  local places, found = {}, {}
  for _, key in ipairs({ open_key(call, row.id), settled_key(call, row.id) }) do
    local flat = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    for number = 1, #flat, 2 do
      places[flat[number]] = tonumber(flat[number + 1])
      found[#found + 1] = flat[number]
    end
  end
  table.sort(found, function(one, other) return places[one] < places[other] end)
  for number, promise_id in ipairs(found) do found[number] = promises.view(call, promise_id) end
  return found
end

-- Give the promises of a closed execution to the next attempt of its run.
function promises.move(call, row, successor)
  if row.fields.run_id ~= successor.fields.run_id then return end
  for _, key in ipairs({ open_key, settled_key }) do
    for _, promise_id in ipairs(redis.call('ZRANGE', key(call, row.id), 0, -1)) do
      redis.call('HSET', key_of(call, promise_id), 'execution_id', successor.id)
    end
    if redis.call('EXISTS', key(call, row.id)) == 1 then
      redis.call('RENAME', key(call, row.id), key(call, successor.id))
    end
  end
  instances.set(successor, 'promised', row.fields.promised)
end

-- Delete the promises of an execution.
function promises.purge(call, row)
  for _, key in ipairs({ open_key(call, row.id), settled_key(call, row.id) }) do
    for _, promise_id in ipairs(redis.call('ZRANGE', key, 0, -1)) do redis.call('DEL', key_of(call, promise_id)) end
    redis.call('DEL', key)
  end
end
