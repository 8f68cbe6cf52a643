-- Unlocks: the scores of what can be claimed. counters HASH: ready is the last one that was given out.
--
-- An unlock is a moment in microseconds. What becomes claimable now gets a larger one than all before it in this partition:
-- within a millisecond they are counted on. What is due at a moment, a thousand times that moment, precedes what becomes
-- claimable in it.

-- Return a whole number as text. Lua formats a number as a fraction, which loses digits of an unlock, and costs more.
local function digits(number)
  return string.format('%d', number)
end

local MAX_STEP_BACK = 1000000 -- microseconds: a clock that was set back by less does not change the order

local function last_unlock(call)
  if not call.unlock then call.unlock = tonumber(redis.call('HGET', call.prefix .. 'counters', 'ready') or 0) end
  return call.unlock
end

-- Return the unlock of something that becomes claimable now.
local function unlock_now(call)
  local first = call.now * 1000 + 1
  local ahead = last_unlock(call) - first
  call.unlock = ahead >= 0 and ahead < MAX_STEP_BACK and call.unlock + 1 or first
  redis.call('HSET', call.prefix .. 'counters', 'ready', call.unlock)
  return call.unlock
end

-- Return the largest unlock of what can be claimed now.
local function unlocked(call)
  return math.max(call.now * 1000 + 999, last_unlock(call))
end
