-- uses: activities, inbox, instances, notices, offers
-- Leases on instances. A claim raises the epoch; a verb that names another one comes from a worker that lost the lease.
-- keys: state-<id> HASH, tried-<id> SET

local leases = {}

local REDELIVERIES = 20 -- rules.REDELIVERIES

-- Return an instance that is leased under an epoch, or nil and the reason why not.
function leases.held(call, entity_id, execution_id, epoch)
  local row = instances.find(call, execution_id, entity_id)
  if not row then return nil, 'there is no such instance' end
  if row.fields.epoch ~= epoch or not row.fields.leased_until then return nil, 'the lease is lost' end
  return row
end

-- Whether nobody holds an instance: it is not leased, or its lease is lost and it is not scheduled for later.
function leases.is_free(call, row)
  local leased_until = row.fields.leased_until
  return not leased_until or (leased_until <= call.now and instances.may_begin(call, row))
end

-- Whether a worker has tried an instance, and its code does not fit.
function leases.has_tried(call, row, worker)
  return row.fields.tried and leases.is_tried(call, row.id, worker)
end

-- The same of an execution that is parked: all of those are looked at by each claim, so that the rest of them is not read.
function leases.is_tried(call, execution_id, worker)
  return redis.call('SISMEMBER', call.prefix .. 'tried-' .. execution_id, worker) == 1
end

-- Offer an instance again to all workers.
function leases.forget_tries(call, row)
  redis.call('DEL', call.prefix .. 'tried-' .. row.id)
  instances.set(row, 'tried', nil)
end

-- Stop offering an instance.
function leases.bury(call, row, reason)
  activities.lease_alone(call, row)
  offers.remove(call, row)
  for _, name in ipairs({ 'leased_until', 'owner', 'worker', 'claim', 'ready' }) do instances.set(row, name, nil) end
  instances.set(row, 'dead_letter', reason)
end

-- Lease an instance; return whether, because one that was handed out too often becomes a dead letter instead.
function leases.take(call, row, worker)
  local fields = row.fields
  if fields.deliveries >= REDELIVERIES then
    local reason = 'handed out ' .. fields.deliveries .. ' times without a commit' .. (fields.last_failure or '')
    leases.bury(call, row, reason)
    return false
  end
  if fields.leased_until then
    activities.put_back(call, row, 1)
    tell_owner(call, fields.owner, 'taken', row.id)
  end
  instances.set(row, 'worker', worker)
  instances.set(row, 'owner', call.owner)
  instances.set(row, 'claim', call.number)
  instances.set(row, 'deliveries', fields.deliveries + 1)
  instances.set(row, 'epoch', fields.epoch + 1)
  instances.set(row, 'leased_until', call.now + call.lease)
  instances.set(row, 'ready', nil)
  offers.lease(call, row)
  return true
end

-- Lease an instance and return it with its inbox; nil if it becomes a dead letter.
function leases.claim(call, row, worker)
  if not leases.take(call, row, worker) then return nil end
  local fields = row.fields
  return { fields.entity_id, row.id, fields.epoch, instances.view(call, row), fields.wake, inbox.since(call, row, 0) }
end

-- Whether the worker that offers itself with { worker, queue, ... } may have an instance, because no older work waits in
-- its queue.
function leases.accepts(call, row, offer)
  local fields = row.fields
  if not offer or fields.leased_until or instances.shown_status(row) ~= 'running' or fields.dead_letter then
    return false
  end
  local serves = false
  for number = 2, #offer do serves = serves or offer[number] == fields.queue end
  if not serves or fields.deliveries >= REDELIVERIES or leases.has_tried(call, row, offer[1]) then return false end
  offers.wake_due(call)
  return not offers.others_wait(call, row)
end

-- Lease an instance to the worker that offers itself, if it may have it.
function leases.claim_eagerly(call, row, offer)
  return leases.accepts(call, row, offer) and leases.claim(call, row, offer[1]) or nil
end

-- Renew the lease on an instance.
function leases.extend(call, row)
  instances.set(row, 'leased_until', call.now + call.lease)
  offers.lease(call, row)
end

-- End the lease on an instance without a commit: it is offered again, or with a reason a dead letter.
function leases.release(call, row, failed, final)
  if not failed then instances.set(row, 'deliveries', math.max(0, row.fields.deliveries - 1)) end
  instances.set(row, 'last_failure', failed and failed ~= '' and '; the last error: ' .. failed or nil)
  activities.put_back(call, row, failed and 1 or 0)
  if final then leases.bury(call, row, failed) else offers.free(call, row, true) end
end
