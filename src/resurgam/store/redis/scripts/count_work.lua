-- Count the work that one ZSET holds, a bounded number of members at a time. The answer is the position from which to go
-- on, false at the end, and for each queue its name, ready instances, waiting activities and claimed activities.
-- part: kind of ZSET ('ready-', 'parked-', 'activities-', 'timers', 'by-status-paused'), queue or '', position or nil
-- reads only: that ZSET; state-<id> HASH, covered-<id> STRING, activity-<execution id>-<ref> HASH, work-<id> SET

local READY, WAITING, CLAIMED = 2, 3, 4 -- places in the counts of a queue

local function count(counts, queue, place)
  counts[queue] = counts[queue] or { queue, 0, 0, 0 }
  counts[queue][place] = counts[queue][place] + 1
end

-- Count the activities that the lease on an instance covers.
local function count_covered(call, counts, id)
  local packed = redis.call('GET', call.prefix .. 'covered-' .. id)
  for _, request in ipairs(packed and cmsgpack.unpack(packed) or {}) do count(counts, request[2], CLAIMED) end
end

local visits = {}

visits['ready-'] = function(call, counts, queue, id, unlock)
  if unlock <= unlocked(call) and not is_to_come(call, unlock) then count(counts, queue, READY) end
  count_covered(call, counts, id)
end

visits['parked-'] = function(call, counts, queue, id)
  if redis.call('HEXISTS', call.prefix .. 'state-' .. id, 'ready') == 1 then count(counts, queue, READY) end
  count_covered(call, counts, id)
end

visits['activities-'] = function(call, counts, queue, id)
  local leased = redis.call('HEXISTS', call.prefix .. 'activity-' .. id, 'leased_until') == 1
  count(counts, queue, leased and CLAIMED or WAITING)
end

-- Those whose moment has come are moved to the ready ones by the next claim.
visits['timers'] = function(call, counts, _, id, wake_at)
  if wake_at > call.now then return true end
  count(counts, redis.call('HGET', call.prefix .. 'state-' .. id, 'queue'), READY)
end

-- The activities of paused instances are on no queue.
visits['by-status-paused'] = function(call, counts, _, id)
  for _, activity in ipairs(activities.of_execution(call, id)) do
    if not activity.dead_letter then count(counts, activity.queue, activity.leased_until and CLAIMED or WAITING) end
  end
  count_covered(call, counts, id)
end

local function count_work(call, part)
  local kind, queue, position = part[1], part[2], part[3]
  local counts, over = {}, false
  local last = walks.along({ keys = { call.prefix .. kind .. queue }, position = position }, function(id, score)
    over = visits[kind](call, counts, queue, id, score) or false
    return over
  end)
  local answer = {}
  for _, counted in pairs(counts) do answer[#answer + 1] = counted end
  return { not over and last or false, answer }
end
