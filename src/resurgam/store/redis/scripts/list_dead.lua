-- Return executions that are dead letters, or have activities that are, in the order in which they became so.
-- The answer is the position from which to go on, false at the end, and for each execution what `seen` returns.
-- part: 'dead-instances' or 'dead-activities', position or nil, how many at most
-- reads only: that ZSET, activity-<execution id>-<ref> HASH, state-<id> HASH, instances-<id> STRING, letters-<id> HASH,
--   schemas-<id> STRING

local function list_dead(call, part)
  local name, position, limit = unpack(part, 1, 3)
  local found = {}
  local last = walks.along({ keys = { call.prefix .. name }, position = position }, function(id)
    local of_activity = name == 'dead-activities'
    local execution_id = of_activity and redis.call('HGET', call.prefix .. 'activity-' .. id, 'execution_id') or id
    local row = execution_id and instances.find(call, execution_id)
    if row then found[#found + 1] = views.seen(call, row) end
    return #found == limit
  end, function() return limit - #found end)
  return { last or false, found }
end
