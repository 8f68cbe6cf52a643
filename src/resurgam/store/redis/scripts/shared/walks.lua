-- uses: order
-- Walks along indexes, in slices: each call looks at a bounded number of members, and returns the position from which the
-- next one goes on. Several indexes of one order are walked as if they were one.
-- keys: created, ended-..., archived-..., named-... and by-... ZSET

local walks = {}

local SLICE = 100 -- members that one call looks at, so that it stays short
local CHUNK = 50 -- members that are read at once, unless the caller knows better

-- Return how many members of an index a walk passes over: those before a position, and the one that stands there.
local function passed_over(key, backwards, position)
  if not position then return 0 end
  local rank = rank_of(key, position[1], position[2])
  if backwards then return redis.call('ZCARD', key) - rank end
  return redis.call('ZRANGE', key, rank, rank)[1] == position[2] and rank + 1 or rank
end

local function range(key, backwards, first, count)
  if backwards then return redis.call('ZRANGE', key, first, first + count - 1, 'REV', 'WITHSCORES') end
  return redis.call('ZRANGE', key, first, first + count - 1, 'WITHSCORES')
end

-- Whether a source has a member left; read up to count more if that is not known.
local function has_more(source, backwards, count)
  if source.place > #source.found and source.rank < source.size then
    local most = math.min(count, source.size - source.rank)
    source.found, source.place = range(source.key, backwards, source.rank, most), 1
    source.rank = source.rank + most
  end
  return source.place <= #source.found
end

-- Whether the next member of a source comes before that of another.
local function is_next(source, other, backwards)
  if backwards then source, other = other, source end
  local score, other_score = tonumber(source.found[source.place + 1]), tonumber(other.found[other.place + 1])
  if score ~= other_score then return score < other_score end
  return precedes(source.found[source.place], other.found[other.place])
end

-- Return the next members of all sources and their scores, up to count.
local function take(sources, backwards, count)
  local ids, scores = {}, {}
  local share = #sources == 1 and count or math.ceil(count / #sources) + 1
  while #ids < count do
    local first
    for _, source in ipairs(sources) do
      if has_more(source, backwards, share) and (not first or is_next(source, first, backwards)) then first = source end
    end
    if not first then break end
    ids[#ids + 1], scores[#scores + 1] = first.found[first.place], tonumber(first.found[first.place + 1])
    first.place = first.place + 2
  end
  return ids, scores
end

local function sources_of(walk)
  local sources = {}
  for number, key in ipairs(walk.keys) do
    local size = redis.call('ZCOUNT', key, walk.from or '-inf', walk.to or '+inf')
    sources[number] =
      { key = key, rank = passed_over(key, walk.backwards, walk.position), size = size, found = {}, place = 1 }
  end
  return sources
end

-- Call visit with each member and its score until it returns true, or for a slice; return the position of the last member
-- that was visited, or nil if there are no more. size says how many members to read next, and prepare is called with them.
-- A walk is { keys, backwards, position } and the score at which it ends: from for one backwards, else to.
function walks.along(walk, visit, size, prepare)
  local sources, backwards, visited, last = sources_of(walk), walk.backwards, 0, nil
  while visited < SLICE do
    local count = math.min(size and size() or CHUNK, SLICE - visited)
    local ids, scores = take(sources, backwards, count)
    if prepare and #ids > 0 then prepare(ids) end
    for number, id in ipairs(ids) do
      last = { scores[number], id }
      if visit(id, scores[number]) then return last end
    end
    if #ids < count then return nil end
    visited = visited + count
  end
  return last
end

-- Return how many members of an index a slice would visit from a position on, and how far back in time it would come.
local function reach(key, position, since)
  local passed = passed_over(key, true, position)
  local left = (since and redis.call('ZCOUNT', key, since, '+inf') or redis.call('ZCARD', key)) - passed
  if left < SLICE then return left, 0 end
  return SLICE, tonumber(range(key, true, passed + SLICE - 1, 1)[2])
end

-- Return the index that has the fewest members from a position on back to a moment, and the others. Of those with many it is
-- the one in which as many members take the longest time: it is the most selective one there, wherever others have more.
function walks.choose(call, indexes, position, since)
  local best, fewest, farthest = 1, nil, nil
  for number = 1, #indexes > 1 and #indexes or 0 do
    local count, moment = reach(call.prefix .. indexes[number], position, since)
    if not fewest or count < fewest or (count == fewest and moment < farthest) then
      best, fewest, farthest = number, count, moment
    end
  end
  local others = {}
  for number, name in ipairs(indexes) do
    if number ~= best then others[#others + 1] = name end
  end
  return indexes[best], others
end

-- Return those of some members that are in all of these indexes, as a set.
function walks.in_all(call, ids, indexes)
  local missing, found = {}, {}
  for _, name in ipairs(indexes) do
    local scores = redis.call('ZMSCORE', call.prefix .. name, unpack(ids))
    for number in ipairs(ids) do
      if not scores[number] then missing[number] = true end
    end
  end
  for number, id in ipairs(ids) do found[id] = not missing[number] end
  return found
end
