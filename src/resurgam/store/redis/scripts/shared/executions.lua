-- uses: instances
-- The executions of an entity, found by their run. A few are looked through; if there are more, an index finds them, so that
-- a start costs the same however many came before it.
-- keys: entities-<entity id> LIST; runs-<entity id> ZSET of two texts for each execution, all with the score 0: one begins
--   with its run and its attempt, the other with its first run and its place among all; both end with its id

local executions = {}

local LOOKED_THROUGH = 16 -- executions of an entity without an index, at most
local PLACE = '%012d' -- so that the order of texts is that of numbers

local function list_key(call, entity_id)
  return call.prefix .. 'entities-' .. entity_id
end

local function index_key(call, entity_id)
  return call.prefix .. 'runs-' .. entity_id
end

-- An id may have any characters, so its length precedes it.
local function text_of_attempt(run_id, attempt)
  return 'attempt ' .. #run_id .. ' ' .. run_id .. ' ' .. attempt .. ' '
end

local function text_of_chain(first_run)
  return 'chain ' .. #first_run .. ' ' .. first_run .. ' '
end

local function texts_of(row)
  local fields = row.fields
  return text_of_attempt(fields.run_id, fields.attempt) .. row.id,
    text_of_chain(fields.first_run) .. string.format(PLACE, fields.place) .. row.id
end

local function index(call, row, place)
  instances.set(row, 'place', place)
  local attempt, chain = texts_of(row)
  redis.call('ZADD', index_key(call, row.fields.entity_id), 0, attempt, 0, chain)
end

local function index_all(call, entity_id)
  for place, row in ipairs(instances.of_entity(call, entity_id)) do index(call, row, place) end
end

-- Add a new execution of an entity, behind all others.
function executions.add(call, row)
  local entity_id = row.fields.entity_id
  local count = redis.call('RPUSH', list_key(call, entity_id), row.id)
  if count == 1 then return end
  if redis.call('EXISTS', index_key(call, entity_id)) == 1 then
    local before = redis.call('LINDEX', list_key(call, entity_id), -2)
    index(call, row, instances.find(call, before).fields.place + 1)
  elseif count > LOOKED_THROUGH then
    index_all(call, entity_id)
  end
end

-- Remove an execution that is deleted.
function executions.remove(call, row)
  local entity_id = row.fields.entity_id
  redis.call('LREM', list_key(call, entity_id), -1, row.id)
  if row.fields.place then redis.call('ZREM', index_key(call, entity_id), texts_of(row)) end
end

-- Replace the order of the executions of an entity, to which others were added.
function executions.set_order(call, entity_id, ids)
  local key = list_key(call, entity_id)
  redis.call('DEL', key, index_key(call, entity_id))
  for _, id in ipairs(ids) do redis.call('RPUSH', key, id) end
  if #ids > LOOKED_THROUGH then index_all(call, entity_id) end
end

-- Return the id of the first text, or the last, that begins with another one; width is that of what precedes the id.
local function find(call, entity_id, text, width, last)
  local from, to = '[' .. text, '(' .. text .. '\255'
  local found
  if last then
    found = redis.call('ZRANGE', index_key(call, entity_id), to, from, 'BYLEX', 'REV', 'LIMIT', 0, 1)
  else
    found = redis.call('ZRANGE', index_key(call, entity_id), from, to, 'BYLEX', 'LIMIT', 0, 1)
  end
  return found[1] and instances.find(call, string.sub(found[1], #text + width + 1))
end

-- Return the ids of all executions, oldest first; nil if there are so many that they have an index.
local function few(call, entity_id)
  local ids = redis.call('LRANGE', list_key(call, entity_id), -LOOKED_THROUGH - 1, -1)
  return #ids <= LOOKED_THROUGH and ids or nil
end

-- Return the execution of an entity with this run and attempt.
function executions.of_attempt(call, entity_id, run_id, attempt)
  local ids = few(call, entity_id)
  if not ids then return find(call, entity_id, text_of_attempt(run_id, attempt), 0) end
  for _, id in ipairs(ids) do
    local row = instances.find(call, id)
    if row.fields.run_id == run_id and row.fields.attempt == attempt then return row end
  end
  return nil
end

-- Return the first and the last of the executions of an entity that began with a run.
function executions.of_chain(call, entity_id, first_run)
  local ids = few(call, entity_id)
  if not ids then
    local text, width = text_of_chain(first_run), #string.format(PLACE, 0)
    return find(call, entity_id, text, width), find(call, entity_id, text, width, true)
  end
  local first, last
  for _, id in ipairs(ids) do
    local row = instances.find(call, id)
    if row.fields.first_run == first_run then first, last = first or row, row end
  end
  return first, last
end
