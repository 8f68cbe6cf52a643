-- Lease activities whose time has come, in the order of becoming available.
-- part: queues, limit, worker, entry for activities whose workflow is closed
-- answer: how many are left, then tasks { entity id, execution id, epoch, ref, attempt, deliveries, request, details }
-- writes: activities-<queue> ZSET, activity-<id>-<ref> HASH, work-<id> SET, counters HASH; for closed workflows state-<id>
--   HASH, pending-<id> STREAM, ready-<queue> ZSET

local function claim_activities(call, part)
  local queues, limit, worker, cancelled = part[1], part[2], part[3], part[4]
  local found = {}
  for _, queue in ipairs(queues) do
    local page = redis.call('ZRANGE', call.prefix .. 'activities-' .. queue, '-inf', unlocked(call), 'BYSCORE', 'LIMIT', 0,
      limit, 'WITHSCORES')
    for number = 1, #page, 2 do found[#found + 1] = { tonumber(page[number + 1]), page[number], queue } end
  end
  table.sort(found, function(a, b) return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2]) end)
  local tasks = {}
  for number = 1, math.min(limit, #found) do
    tasks[#tasks + 1] = activities.claim(call, found[number][3], found[number][2], worker, cancelled)
  end
  table.insert(tasks, 1, activities.count(call, queues))
  return tasks
end

local function claim_activities_batch(call, parts)
  return answer_each(call, parts, claim_activities)
end
