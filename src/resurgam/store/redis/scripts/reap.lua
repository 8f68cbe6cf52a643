-- End the leases of an owner that is dead, remove its workers, and report the outboxes that it may have left.
-- part: owner
-- answer: how many leases have ended
-- reads: queues SET, unsent ZSET
-- writes: state-<id> HASH, ready-<queue>, parked-<queue> ZSET; activity-<id>-<ref> HASH, activities-<queue> ZSET; workers ZSET,
--   worker-<worker id> HASH

-- Unlock what an owner holds, listed in a ZSET by the end of its lease.
local function unlock_held(call, list, hash, owner)
  local count = 0
  for _, id in ipairs(redis.call('ZRANGE', call.prefix .. list, string.format('(%.0f', call.now * 1000 + 999), '+inf', 'BYSCORE')) do
    local key = call.prefix .. hash .. id
    if redis.call('HGET', key, 'owner') == owner then
      redis.call('HSET', key, 'leased_until', call.now)
      redis.call('ZADD', call.prefix .. list, call.now * 1000, id)
      count = count + 1
    end
  end
  return count
end

local function reap(call, part)
  local owner, count = part[1], 0
  for _, queue in ipairs(redis.call('SMEMBERS', call.prefix .. 'queues')) do
    local ended = unlock_held(call, 'ready-' .. queue, 'state-', owner)
      + unlock_held(call, 'parked-' .. queue, 'state-', owner)
      + unlock_held(call, 'activities-' .. queue, 'activity-', owner)
    if ended > 0 then note_work(call, queue) end
    count = count + ended
  end
  workers.drop_of_owner(call, owner)
  outbox.report_all(call)
  return count
end
