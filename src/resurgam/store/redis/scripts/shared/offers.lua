-- uses: instances, notices, unlock
-- Instances that are offered to workers. A leased one is listed by the end of its lease, so that an expired lease needs no
-- recovery. Paused instances and dead letters are not listed, nor are scheduled ones before their moment.
-- keys: ready-<queue> ZSET, parked-<queue> ZSET, timers ZSET

local offers = {}

local DUE_AT_ONCE = 200 -- timers that one call moves at most, so that it stays short

local function list_of(call, row)
  return call.prefix .. (instances.is_parked(row) and 'parked-' or 'ready-') .. row.fields.queue
end

local function is_held_back(row)
  return row.fields.paused or row.fields.dead_letter
end

-- Do not wake an instance at its moment.
function offers.call_off(call, row)
  if row.fields.wake_at then redis.call('ZREM', call.prefix .. 'timers', row.id) end
end

-- Take an instance off all lists; before a change of its status, its pause or its dead letter.
function offers.remove(call, row)
  redis.call('ZREM', list_of(call, row), row.id)
  offers.call_off(call, row)
end

-- Note that an instance is offered; who claims it in the same call takes that back.
local function offered(call, row)
  call.offered = call.offered or {}
  call.offered[row.id] = row.fields.queue
end

-- Return when an instance is offered whose lease is lost: not before its moment if it is scheduled for later, and then
-- never if that is not known.
local function lost_at(row)
  local fields = row.fields
  if fields.status ~= 'scheduled' then return fields.leased_until end
  return fields.wake_at and math.max(fields.leased_until, fields.wake_at)
end

-- List an instance as leased.
function offers.lease(call, row)
  if call.offered then call.offered[row.id] = nil end
  if is_held_back(row) then return end
  offers.call_off(call, row)
  local moment = lost_at(row)
  if not moment then
    redis.call('ZREM', list_of(call, row), row.id)
    return
  end
  redis.call('ZADD', list_of(call, row), moment * 1000, row.id)
  note_due(call, row.fields.queue, moment)
end

-- List a free instance by what it is: ready, parked, or waiting for its moment. One that is ready goes behind all others.
function offers.list(call, row)
  local fields = row.fields
  if is_held_back(row) then return end
  if fields.ready or instances.is_parked(row) then
    redis.call('ZADD', list_of(call, row), unlock_now(call), row.id)
    offered(call, row)
  else
    redis.call('ZREM', list_of(call, row), row.id)
    if fields.wake_at then
      redis.call('ZADD', call.prefix .. 'timers', fields.wake_at, row.id)
      note_due(call, fields.queue, fields.wake_at)
    end
  end
end

-- Make a free instance ready, unless it is scheduled for later; one that is ready keeps its place.
function offers.make_ready(call, row)
  if row.fields.ready or not instances.may_begin(call, row) then return end
  instances.set(row, 'ready', 1)
  offers.call_off(call, row)
  if not is_held_back(row) and not instances.is_parked(row) then
    redis.call('ZADD', list_of(call, row), unlock_now(call), row.id)
    offered(call, row)
  end
end

-- End the lease of an instance and list it as free.
function offers.free(call, row, ready)
  for _, name in ipairs({ 'leased_until', 'owner', 'worker', 'claim' }) do instances.set(row, name, nil) end
  instances.set(row, 'ready', ready and instances.may_begin(call, row) and 1 or nil)
  offers.list(call, row)
end

local function wake(call, id, moment)
  local row = instances.find(call, id)
  redis.call('ZREM', call.prefix .. 'timers', id)
  if not row or row.fields.leased_until or row.fields.ready then return end
  instances.set(row, 'ready', 1)
  if not is_held_back(row) and not instances.is_parked(row) then
    redis.call('ZADD', list_of(call, row), moment * 1000, id)
    offered(call, row)
  end
end

-- Make instances ready whose moment has come; return whether more are due.
function offers.wake_due(call)
  local due = redis.call('ZRANGE', call.prefix .. 'timers', '-inf', call.now, 'BYSCORE', 'LIMIT', 0, DUE_AT_ONCE,
    'WITHSCORES')
  for number = 1, #due, 2 do wake(call, due[number], tonumber(due[number + 1])) end
  return #due == 2 * DUE_AT_ONCE
end

-- Whether another instance than this one waits in its queue.
function offers.others_wait(call, row)
  local first = redis.call('ZRANGE', call.prefix .. 'ready-' .. row.fields.queue, '-inf', unlocked(call), 'BYSCORE',
    'LIMIT', 0, 2)
  return #first > 1 or (first[1] ~= nil and first[1] ~= row.id)
end

-- Return how many instances of some queues may be claimed, if the worker has not tried them.
function offers.count(call, queues)
  local count = 0
  for _, queue in ipairs(queues) do
    for _, list in ipairs({ 'ready-', 'parked-' }) do
      count = count + redis.call('ZCOUNT', call.prefix .. list .. queue, '-inf', unlocked(call))
    end
  end
  return count
end

-- Tell the workers of all queues in which instances are left to be claimed.
function offers.announce(call)
  for _, queue in pairs(call.offered or {}) do note_work(call, queue) end
  call.offered = nil
end
