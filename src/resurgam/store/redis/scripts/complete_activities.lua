-- Put the result of an attempt into the inbox of its instance, and schedule the next attempt if there is one.
-- part: entity id, execution id, epoch, ref, attempt, entry, moment of the next attempt, details, heartbeat_at; the last
--   three may be nil
-- answer: the reason of a refusal, or 1
-- writes: activity-<id>-<ref> HASH, activities-<queue> ZSET, work-<id> SET, covered-<id> STRING; state-<id> HASH,
--   pending-<id> STREAM, ready-<queue>, timers ZSET, counters HASH

local function complete(call, part)
  local entity_id, execution_id, epoch, ref, attempt, entry, next_at, details, heartbeat_at = unpack(part, 1, 9)
  local row = instances.find(call, execution_id, entity_id)
  local activity, reason = activities.held(call, row, ref, epoch, attempt)
  if not activity then return reason end
  if next_at then
    activities.retry(call, row, activity, next_at, details, heartbeat_at)
  else
    activities.drop(call, activity)
  end
  inbox.put(call, row, entry)
  return 1
end

local function complete_activities_batch(call, parts)
  return answer_each(call, parts, complete)
end
