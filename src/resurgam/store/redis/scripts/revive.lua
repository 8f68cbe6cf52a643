-- Offer dead letters again, an instance and its activities, and a parked run to the workers that tried it.
-- part: entity id, execution id
-- answer: how many, or -1 if there is no such execution
-- writes: state-<id> HASH, tried-<id> SET, ready-<queue>, parked-<queue> ZSET; activity-<id>-<ref> HASH,
--   activities-<queue> ZSET, counters HASH

local function revive(call, part)
  local row = instances.find(call, part[2], part[1])
  if not row then return -1 end
  if row.fields.archived then return 0 end
  local count = 0
  if row.fields.dead_letter or row.fields.parked then
    count = 1
    instances.set(row, 'dead_letter', nil)
    instances.set(row, 'deliveries', 0)
    leases.forget_tries(call, row)
    if not row.fields.leased_until then
      instances.set(row, 'ready', instances.may_begin(call, row) and 1 or nil)
      offers.list(call, row)
    elseif row.fields.leased_until <= call.now then
      note_work(call, row.fields.queue) -- the workers that tried it have not heard of it when its lease expired
    end
  end
  return count + activities.revive(call, row)
end

local function revive_batch(call, parts)
  return answer_each(call, parts, revive)
end
