-- Return everything that is kept of an entity's executions, oldest first: those that may still change at one moment, and of
-- the complete ones as many as fit into one call. The others are named only, and asked for by their ids.
-- The answer has for each execution its id, and what `copy` returns or false.
-- part: entity id, run id or nil, ids or nil for all
-- reads only: entities-<entity id> LIST; state-<id> and forgotten-<id> HASH, events-<id> and pending-<id> STREAM,
--   instances-<id>, schemas-<id>, answer-<id> and covered-<id> STRING, work-<id> SET, activity-<id>-<ref> HASH,
--   promises-<id> and settled-<id> ZSET, promise-<promise id> HASH

local ENTRIES = 5000 -- entries of complete logs that one call returns at most, so that it stays short

-- Return all entries that are kept, in no order: seq, body and the location of a forgotten one or false, in turn.
local function copy_log(call, row)
  local found = {}
  local function add(seq, body, location)
    found[#found + 1] = seq
    found[#found + 1] = body
    found[#found + 1] = location
  end
  for _, entry in ipairs(redis.call('XRANGE', call.prefix .. 'events-' .. row.id, '-', '+')) do
    add(tonumber(string.match(entry[1], '^%d+')), entry[2][4], false)
  end
  local forgotten = redis.call('HGETALL', call.prefix .. 'forgotten-' .. row.id)
  for number = 1, #forgotten, 2 do
    local location, _, body = unpack(cmsgpack.unpack(forgotten[number + 1]))
    add(tonumber(forgotten[number]), body, location)
  end
  return found
end

local function copy(call, row)
  local answer = redis.call('GET', call.prefix .. 'answer-' .. row.id)
  return {
    instances.view(call, row), row.fields.paused or false, copy_log(call, row), contents.inbox(call, row),
    contents.activities(call, row), promises.of_execution(call, row), answer and cmsgpack.unpack(answer)[2],
    deletion.version(call, row),
  }
end

local function copies(call, part)
  local entity_id, run_id, ids = part[1], part[2], part[3]
  local room, answer = ENTRIES, {}
  for _, id in ipairs(ids or redis.call('LRANGE', call.prefix .. 'entities-' .. entity_id, 0, -1)) do
    local row = instances.find(call, id, entity_id)
    if row and (not run_id or row.fields.run_id == run_id) then
      local complete = row.fields.deactivated and true or false
      local fits = not complete or room > 0
      if complete and not row.fields.archived then room = room - row.fields.last_seq end
      answer[#answer + 1] = { id, fits and copy(call, row) }
    end
  end
  return answer
end
