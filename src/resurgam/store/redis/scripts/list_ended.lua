-- Return complete executions in the order in which they ended, from some lists that have them in that order.
-- The answer is the position from which to go on, false at the end, and for each execution what `view` returns.
-- part: names of lists, position or nil, moment before which they ended, how many at most
-- reads only: ended-... ZSET, state-<id> HASH, instances-<id> STRING, schemas-<id> STRING

local function list_ended(call, part)
  local names, position, before, limit = unpack(part, 1, 4)
  local keys, found = {}, {}
  for number, name in ipairs(names) do keys[number] = call.prefix .. name end
  local walk = { keys = keys, position = position, to = string.format('(%.0f', before) }
  local last = walks.along(walk, function(id)
    found[#found + 1] = instances.view(call, instances.find(call, id))
    return #found == limit
  end, function() return limit - #found end)
  return { last or false, found }
end
