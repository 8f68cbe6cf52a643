-- Deliver an event to an execution, or settle a promise with it.
-- part: entry, entity id, execution id, promise id, name of a promise, schemas of signals as JSON, offer; all but the first
--   may be nil
-- answer: { 'delivered', claim }, { 'missing' }, { 'ended', status }, { 'settled' } or { 'outdated' }
-- reads: entities-<entity id> LIST, schemas-<id> STRING
-- writes: state-<id> HASH, pending-<id> STREAM, ready-<queue>, timers ZSET, promise-<promise id> HASH, promises-<id>,
--   settled-<id> ZSET; a pause or its end: activities-<queue> ZSET, activity-<id>-<ref> HASH; a termination: events-<id>,
--   feed STREAM, covered-<id> STRING, tried-<id> SET, parked-<queue>, by-status-* ZSET

local function delivered(call, row, offer)
  return { 'delivered', row and leases.claim_eagerly(call, row, offer) or false }
end

local function settle(call, promise_id, entry, offer)
  local row, reason = promises.settle(call, promise_id, entry)
  return row and delivered(call, row, offer) or { reason }
end

local function is_outdated(call, row, schemas)
  return schemas and schemas ~= (redis.call('GET', call.prefix .. 'schemas-' .. row.id) or '{}')
end

local function deliver(call, part)
  local entry, entity_id, execution_id, promise_id, promise, schemas, offer = unpack(part, 1, 7)
  if promise_id then return settle(call, promise_id, entry, offer) end
  local row
  if execution_id then row = instances.find(call, execution_id) else row = instances.newest(call, entity_id) end
  if not row then return { 'missing' } end
  if instances.is_closed(row) then
    if promise and promises.named(call, row, promise) then return { 'settled' } end
    return { 'ended', row.fields.status }
  end
  if is_outdated(call, row, schemas) then return { 'outdated' } end
  if promise then
    local named = promises.named(call, row, promise)
    return named and settle(call, named, entry, offer) or { 'missing' }
  end
  return delivered(call, lifecycle.apply(call, row, entry) and row, offer)
end

local function deliver_batch(call, parts)
  return answer_each(call, parts, deliver)
end
