-- End the leases of an owner that is dead, those in one list, a bounded number of members at a time.
-- part: owner, kind of ZSET ('ready-', 'parked-', 'activities-', 'by-status-paused'), queue or '', position or nil
-- answer: the position from which to go on, or false at the end
-- writes: ready-<queue>, parked-<queue>, activities-<queue> ZSET, state-<id>, activity-<id>-<ref> HASH

-- What is leased is listed by the end of its lease, which is still to come.
local function find_listed(call, key, hash, owner, position)
  local held = {}
  local last = walks.along({ keys = { key }, position = position or { call.now * 1000 + 999, '' } }, function(id)
    if redis.call('HGET', call.prefix .. hash .. id, 'owner') == owner then held[#held + 1] = id end
  end)
  return held, last
end

-- Return from when on something can be claimed: now, unless it is an instance that is scheduled for later.
local function free_from(call, key)
  local status, wake_at = unpack(redis.call('HMGET', key, 'status', 'wake_at'))
  if status ~= 'scheduled' then return call.now end
  return math.max(call.now, tonumber(wake_at or offers.NEVER))
end

local function reap_listed(call, kind, queue, owner, position)
  local key, hash = call.prefix .. kind .. queue, kind == 'activities-' and 'activity-' or 'state-'
  local held, last = find_listed(call, key, hash, owner, position)
  for _, id in ipairs(held) do
    local moment = free_from(call, call.prefix .. hash .. id)
    redis.call('HSET', call.prefix .. hash .. id, 'leased_until', call.now)
    redis.call('ZADD', key, moment * 1000, id)
    if moment > call.now then note_due(call, queue, moment) end
  end
  if #held > 0 then note_work(call, queue) end
  return last
end

-- A paused instance and its activities are on no queue; they are listed by the ends of their leases when the pause ends.
local function reap_paused(call, kind, owner, position)
  return walks.along({ keys = { call.prefix .. kind }, position = position }, function(id)
    local key = call.prefix .. 'state-' .. id
    if redis.call('HGET', key, 'owner') == owner then redis.call('HSET', key, 'leased_until', call.now) end
    for _, activity in ipairs(activities.of_execution(call, id)) do
      if activity.owner == owner then
        redis.call('HSET', call.prefix .. 'activity-' .. activity.id, 'leased_until', call.now, 'aside', call.now * 1000)
      end
    end
  end)
end

local function reap_list(call, part)
  local owner, kind, queue, position = unpack(part, 1, 4)
  if kind == 'by-status-paused' then return reap_paused(call, kind, owner, position) or false end
  return reap_listed(call, kind, queue, owner, position) or false
end
