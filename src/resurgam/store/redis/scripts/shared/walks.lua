-- uses: instances, order
-- Walks along an index of executions, in slices: each call looks at a bounded number of members, and returns the position
-- from which the next one goes on.
-- keys: created, ended and by-... ZSET, state-<id> HASH, entities-<entity id> LIST

local walks = {}

local SLICE = 100 -- members that one call looks at, so that it stays short
local CHUNK = 50 -- members that are read at once

-- Return the first rank of a walk: behind a position, or from the first member on.
function walks.first(key, backwards, position)
  if not position then return backwards and redis.call('ZCARD', key) - 1 or 0 end
  local rank = rank_of(key, position[1], position[2])
  if backwards then return rank - 1 end
  return redis.call('ZRANGE', key, rank, rank)[1] == position[2] and rank + 1 or rank
end

-- Call visit with each member and its score until it returns true, or for a slice; return the position of the last member
-- that was visited, or nil if there are no more.
function walks.along(key, backwards, position, visit)
  local rank, visited, last = walks.first(key, backwards, position), 0, nil
  while visited < SLICE do
    local found
    if backwards then
      found = rank >= 0 and redis.call('ZRANGE', key, math.max(0, rank - CHUNK + 1), rank, 'WITHSCORES') or {}
    else
      found = redis.call('ZRANGE', key, rank, rank + CHUNK - 1, 'WITHSCORES')
    end
    if #found == 0 then return nil end
    for number = 1, #found, 2 do
      local place = backwards and #found - number or number
      last = { tonumber(found[place + 1]), found[place] }
      if visit(last[2], last[1]) then return last end
      visited = visited + 1
    end
    rank = backwards and rank - CHUNK or rank + CHUNK
  end
  return last
end

-- Return the shortest of some indexes, and the others.
function walks.choose(call, indexes)
  local shortest, length
  for number, name in ipairs(indexes) do
    local size = redis.call('ZCARD', call.prefix .. name)
    if not length or size < length then
      shortest, length = number, size
    end
  end
  local others = {}
  for number, name in ipairs(indexes) do
    if number ~= shortest then others[#others + 1] = name end
  end
  return indexes[shortest], others
end

-- Whether an execution is in all of these indexes.
function walks.is_in(call, id, indexes)
  for _, name in ipairs(indexes) do
    if not redis.call('ZSCORE', call.prefix .. name, id) then return false end
  end
  return true
end
