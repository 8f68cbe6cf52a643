-- Renew a lease on an instance or, with a ref, on one of its activities.
-- part: entity id, execution id, epoch, ref, wake, details, heartbeat_at; ref, details and heartbeat_at may be nil
-- answer: the reason of a refusal, or { wake, entries of the inbox since }
-- writes: state-<id> HASH, ready-<queue> or parked-<queue> ZSET; activity-<id>-<ref> HASH, activities-<queue> ZSET,
--   covered-<id> STRING, work-<id> SET, counters HASH

local function extend(call, part)
  local entity_id, execution_id, epoch, ref, wake, details, heartbeat_at = unpack(part, 1, 7)
  if ref then
    local row = instances.find(call, execution_id, entity_id)
    local activity, reason = activities.held(call, row, ref, epoch)
    if not activity then return reason end
    activities.extend(call, row, activity, details, heartbeat_at)
    return { 0, {} }
  end
  local row, reason = leases.held(call, entity_id, execution_id, epoch)
  if not row then return reason end
  leases.extend(call, row)
  return { row.fields.wake, inbox.since(call, row, wake) }
end

local function extend_batch(call, parts)
  return answer_each(call, parts, extend)
end
