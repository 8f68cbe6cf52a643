-- Release what calls of this owner have leased whose answers were lost: nobody serves it. It counts as not handed out.
-- part: the numbers of the calls, as text
-- answer: how many leases have ended
-- reads: queues HASH
-- writes: state-<id> HASH, ready-<queue>, parked-<queue>, timers ZSET; activity-<id>-<ref> HASH, activities-<queue> ZSET,
--   covered-<id> STRING, work-<id> SET, counters HASH; queries-<queue> ZSET

-- Return the members of a list that these calls have leased, each with the execution and the ref in its hash.
local function leased_by(call, list, hash, numbers)
  local found = {}
  for _, id in ipairs(redis.call('ZRANGE', call.prefix .. list, string.format('(%.0f', call.now * 1000 + 999), '+inf', 'BYSCORE')) do
    local owner, number, execution_id, ref =
      unpack(redis.call('HMGET', call.prefix .. hash .. id, 'owner', 'claim', 'execution_id', 'ref'))
    if owner == call.owner and numbers[number] then found[#found + 1] = { id, execution_id, ref } end
  end
  return found
end

local function give_back_instances(call, list, numbers)
  local found = leased_by(call, list, 'state-', numbers)
  for _, one in ipairs(found) do leases.release(call, instances.find(call, one[1])) end
  return #found
end

local function give_back_activities(call, list, numbers)
  local found = leased_by(call, list, 'activity-', numbers)
  for _, one in ipairs(found) do
    local row = instances.find(call, one[2])
    activities.release(call, row, activities.find(call, row.id, one[3]))
  end
  return #found
end

local function give_back_queries(call, queue, numbers)
  local found = leased_by(call, 'queries-' .. queue, 'query-', numbers)
  for _, one in ipairs(found) do redis.call('ZADD', call.prefix .. 'queries-' .. queue, unlock_now(call), one[1]) end
  if #found > 0 then note_work(call, queue) end
  return #found
end

local function give_back(call, part)
  local numbers, count = {}, 0
  for _, number in ipairs(part) do numbers[number] = true end
  for _, queue in ipairs(queues.names(call)) do
    count = count + give_back_activities(call, 'activities-' .. queue, numbers)
      + give_back_instances(call, 'ready-' .. queue, numbers)
      + give_back_instances(call, 'parked-' .. queue, numbers)
      + give_back_queries(call, queue, numbers)
  end
  return count
end

local function give_back_batch(call, parts)
  return answer_each(call, parts, give_back)
end
