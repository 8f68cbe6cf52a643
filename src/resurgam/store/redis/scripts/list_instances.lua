-- Return executions that are in all of some indexes, newest first: the most selective index is walked, the others are asked.
-- The answer is the position from which to go on, false at the end, and for each execution what `seen` returns.
-- part: names of indexes, position or nil, moment from which on they were created or nil, kind or nil,
--   whether only the newest of an entity, how many at most
-- reads only: created, named-... and by-... ZSET, state-<id> HASH, instances-<id> STRING, entities-<entity id> LIST,
--   letters-<id> HASH, schemas-<id> STRING

-- Whether an execution is of a kind, and the newest of its entity, as far as that is asked.
local function fits(call, id, kind, newest_only)
  if not kind and not newest_only then return true end
  local entity_id, own_kind = unpack(redis.call('HMGET', call.prefix .. 'state-' .. id, 'entity_id', 'kind'))
  if kind and own_kind ~= kind then return false end
  return not newest_only or redis.call('LINDEX', call.prefix .. 'entities-' .. entity_id, -1) == id
end

local function list_instances(call, part)
  local indexes, position, since, kind, newest_only, limit = unpack(part, 1, 6)
  local index, others = walks.choose(call, indexes, position, since)
  local found, in_others = {}, {}
  local walk = { keys = { call.prefix .. index }, backwards = true, position = position, from = since }
  local all_fit = #others == 0 and not newest_only
  local function size() return (all_fit and 1 or 2) * (limit - #found) end
  local function ask_others(ids) in_others = walks.in_all(call, ids, others) end
  local last = walks.along(walk, function(id)
    if in_others[id] and fits(call, id, kind, newest_only) then
      found[#found + 1] = views.seen(call, instances.find(call, id))
    end
    return #found == limit
  end, size, ask_others)
  return { last or false, found }
end
