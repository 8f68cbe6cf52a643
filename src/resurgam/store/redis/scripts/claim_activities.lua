-- Lease activities whose time has come, in the order of becoming available.
-- part: queues, limit, worker, entry for activities whose workflow is closed
-- answer: how many are left, then tasks { entity id, execution id, epoch, ref, attempt, deliveries, request, details }
-- writes: activities-<queue> ZSET, activity-<id>-<ref> HASH, work-<id> SET, counters HASH; for those with a prepared entry
--   state-<id> HASH, pending-<id> STREAM; for closed workflows these and ready-<queue> ZSET

local AT_ONCE = 200 -- activities of closed workflows and dead letters that one call deals with at most

-- One that must not run again makes room for the next: who gets fewer than the limit must not leave others behind.
local function claim_activities(call, part)
  local queues, limit, worker, cancelled = part[1], part[2], part[3], part[4]
  local tasks, looked_at = {}, 0
  repeat
    local found = activities.claimable(call, queues, limit - #tasks)
    for _, one in ipairs(found) do tasks[#tasks + 1] = activities.claim(call, one[3], one[2], worker, cancelled) end
    looked_at = looked_at + #found
    if looked_at >= limit + AT_ONCE then
      for _, queue in ipairs(queues) do note_work(call, queue) end -- the caller asks again
      break
    end
  until #found == 0 or #tasks == limit
  table.insert(tasks, 1, activities.count(call, queues))
  return tasks
end

local function claim_activities_batch(call, parts)
  return answer_each(call, parts, claim_activities)
end
