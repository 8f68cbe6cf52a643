-- End a lease on an instance or, with a ref, on one of its activities, without an outcome.
-- part: entity id, execution id, epoch, ref or nil, failed or nil, final
-- answer: the reason of a refusal, or 1
-- writes: state-<id> HASH, ready-<queue>, parked-<queue>, timers ZSET; activity-<id>-<ref> HASH, activities-<queue> ZSET,
--   covered-<id> STRING, work-<id> SET, counters HASH

local function release(call, part)
  local entity_id, execution_id, epoch, ref, failed, final = unpack(part, 1, 6)
  if ref then
    local row = instances.find(call, execution_id, entity_id)
    local activity, reason = activities.held(call, row, ref, epoch)
    if not activity then return reason end
    activities.release(call, row, activity, failed, final and failed)
    return 1
  end
  local row, reason = leases.held(call, entity_id, execution_id, epoch)
  if not row then return reason end
  leases.release(call, row, failed, final)
  return 1
end

local function release_batch(call, parts)
  return answer_each(call, parts, release)
end
