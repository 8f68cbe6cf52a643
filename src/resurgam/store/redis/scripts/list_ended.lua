-- Return complete executions in the order in which they ended, as far as they are in all of some indexes.
-- The answer is the position from which to go on, false at the end, and for each execution what `view` returns.
-- part: names of indexes, position or nil, moment before which they ended, how many at most
-- reads only: ended and by-... ZSET, state-<id> HASH, instances-<id> STRING, schemas-<id> STRING

local function list_ended(call, part)
  local indexes, position, before, limit = unpack(part, 1, 4)
  local found, over = {}, false
  local last = walks.along(call.prefix .. 'ended', false, position, function(id, closed_at)
    if closed_at >= before then
      over = true
      return true
    end
    if walks.is_in(call, id, indexes) then found[#found + 1] = instances.view(call, instances.find(call, id)) end
    return #found == limit
  end)
  return { not over and last or false, found }
end
