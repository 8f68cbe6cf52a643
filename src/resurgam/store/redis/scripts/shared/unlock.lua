-- Unlocks: the scores of what can be claimed. counters HASH: ready is the last one that was given out.
--
-- An unlock is a moment in microseconds. What becomes claimable now gets a larger one than all before it in this partition:
-- within a millisecond they are counted on, and after the clock was set back too. What is due at a moment has a thousand
-- times that moment, and precedes what becomes claimable in it: only such unlocks are multiples of a thousand.

-- Return a whole number as text. Lua formats a number as a fraction, which loses digits of an unlock, and costs more.
local function digits(number)
  return string.format('%d', number)
end

local function last_unlock(call)
  if not call.unlock then call.unlock = tonumber(redis.call('HGET', call.prefix .. 'counters', 'ready') or 0) end
  return call.unlock
end

-- Return the unlock of something that becomes claimable now.
local function unlock_now(call)
  local unlock = math.max(last_unlock(call), call.now * 1000) + 1
  call.unlock = unlock % 1000 == 0 and unlock + 1 or unlock
  redis.call('HSET', call.prefix .. 'counters', 'ready', call.unlock)
  return call.unlock
end

-- Whether an unlock is a moment that is still to come: the end of a lease, or that of a further attempt.
local function is_to_come(call, unlock)
  return unlock > call.now * 1000 and unlock % 1000 == 0
end

-- Return the largest unlock of what can be claimed now. If the clock was set back, moments to come are smaller.
local function unlocked(call)
  return math.max(call.now * 1000 + 999, last_unlock(call))
end

local PAGE = 100 -- members of a list that are looked at together, at least

-- Add up to limit members of a list whose time has come, and that fit if that is asked, each as its unlock, itself and the
-- queue.
local function take_claimable(call, list, queue, limit, found, fits)
  local key, seen, most, count = call.prefix .. list .. queue, 0, #found + limit, fits and math.max(PAGE, limit) or limit
  while #found < most do
    local page = redis.call('ZRANGE', key, '-inf', unlocked(call), 'BYSCORE', 'LIMIT', seen, count, 'WITHSCORES')
    for number = 1, #page, 2 do
      local unlock, id = tonumber(page[number + 1]), page[number]
      if #found < most and not is_to_come(call, unlock) and (not fits or fits(id)) then
        found[#found + 1] = { unlock, id, queue }
      end
    end
    if #page < 2 * count then return end
    seen = seen + count
  end
end
