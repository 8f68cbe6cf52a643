-- Positions in a ZSET: a score and the member that stands there, or stood there before it was removed.

-- Whether a text stands before another in a ZSET. Operators of Lua compare by the locale of the server.
local function precedes(one, other)
  for number = 1, math.min(#one, #other) do
    local left, right = string.byte(one, number), string.byte(other, number)
    if left ~= right then return left < right end
  end
  return #one < #other
end

-- Return how many members of a ZSET stand before a position.
local function rank_of(key, score, member)
  local exact = string.format('%.0f', score)
  local low = redis.call('ZCOUNT', key, '-inf', '(' .. exact)
  local high = low + redis.call('ZCOUNT', key, exact, exact)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if precedes(redis.call('ZRANGE', key, middle, middle)[1], member) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end
