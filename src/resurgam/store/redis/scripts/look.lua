-- Return whether a worker could claim something in some queues, when something there becomes claimable by itself, and the
-- moment of the call; report outboxes that were left. Nothing is claimed or changed.
-- part: worker, queues, whether instances, activities and queries count
-- answer: 1 or 0, the next moment or -1, the moment of the call
-- reads only: timers, ready-<queue>, parked-<queue>, activities-<queue>, queries-<queue> ZSET, state-<id>, query-<id> HASH,
--   tried-<id> SET, counters HASH, due and unsent ZSET

local PAGE = 100 -- candidates that are looked at together

-- Whether an instance in a list is free; in that of parked ones, and the worker has not tried it.
local function is_free(call, kind, id, worker)
  if kind == 'parked-' and leases.is_tried(call, id, worker) then return false end
  local row = instances.find(call, id)
  return row and leases.is_free(call, row) and not leases.has_tried(call, row, worker)
end

-- Whether a list of instances has one for a worker.
local function offers_one(call, kind, queue, worker)
  local seen = 0
  while true do
    local page =
      redis.call('ZRANGE', call.prefix .. kind .. queue, '-inf', unlocked(call), 'BYSCORE', 'LIMIT', seen, PAGE)
    for _, id in ipairs(page) do
      if is_free(call, kind, id, worker) then return true end
    end
    if #page < PAGE then return false end
    seen = seen + PAGE
  end
end

-- Whether an instance whose moment has come is in one of the queues, and the worker has not tried it.
local function is_due(call, queues, worker)
  local served = {}
  for _, queue in ipairs(queues) do served[queue] = true end
  local seen = 0
  while true do
    local page = redis.call('ZRANGE', call.prefix .. 'timers', '-inf', call.now, 'BYSCORE', 'LIMIT', seen, PAGE)
    for _, id in ipairs(page) do
      local queue, tried = unpack(redis.call('HMGET', call.prefix .. 'state-' .. id, 'queue', 'tried'))
      if served[queue] and not (tried and leases.is_tried(call, id, worker)) then return true end
    end
    if #page < PAGE then return false end
    seen = seen + PAGE
  end
end

local function is_there(call, worker, queues, with_instances, with_activities, with_queries)
  if with_instances then
    for _, queue in ipairs(queues) do
      if offers_one(call, 'ready-', queue, worker) or offers_one(call, 'parked-', queue, worker) then return true end
    end
    if is_due(call, queues, worker) then return true end
  end
  if with_activities and #activities.claimable(call, queues, 1) > 0 then return true end
  return with_queries and queries.are_waiting(call, queues)
end

-- Return the first moment in a ZSET after this one; its scores are moments times scale.
local function first_after(key, last, scale)
  local found = redis.call('ZRANGE', key, string.format('(%.0f', last), '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
  return found[2] and math.ceil(tonumber(found[2]) / scale) or math.huge
end

-- Return the first moment at which something of any kind becomes claimable by itself, or effects were left behind for too
-- long. It is no later than the one that was last announced for a queue, even if that is void by now: what comes after an
-- announced moment is not announced.
local function next_due(call, queues)
  local due = first_after(call.prefix .. 'timers', call.now, 1)
  for _, queue in ipairs(queues) do
    local announced = tonumber(redis.call('ZSCORE', call.prefix .. 'due', queue) or 0)
    if announced > call.now then due = math.min(due, announced) end
    for _, list in ipairs({ 'ready-', 'parked-', 'activities-', 'queries-' }) do
      due = math.min(due, first_after(call.prefix .. list .. queue, call.now * 1000 + 999, 1000))
    end
  end
  due = math.min(due, outbox.next_report(call) or due)
  return due < math.huge and due or -1
end

local function look(call, part)
  outbox.report(call)
  return { is_there(call, unpack(part, 1, 5)) and 1 or 0, next_due(call, part[2]), call.now }
end
