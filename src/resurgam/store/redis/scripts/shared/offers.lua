-- uses: instances, notices, unlock
-- Instances that are offered to workers. A leased one is listed by the end of its lease, so that an expired lease needs no
-- recovery. Paused instances and dead letters are not listed, nor are scheduled ones before their moment.
-- The lists are written after the keys of the instances: Redis does not roll back a function that fails, and an instance that
-- is listed must be as its list says.
-- keys: ready-<queue> ZSET, parked-<queue> ZSET, timers ZSET

local offers = {}

offers.NEVER = 253402300799999 -- the last moment of the year 9999

local DUE_AT_ONCE = 200 -- timers that one call moves at most, so that it stays short

local function list_of(call, row)
  return call.prefix .. (instances.is_parked(row) and 'parked-' or 'ready-') .. row.fields.queue
end

local function is_held_back(row)
  return row.fields.paused or row.fields.dead_letter
end

-- Put an instance on a list with a score, or with false take it off, when the lists are written.
local function put(call, key, id, score)
  local lists = call.lists
  if not lists then
    lists = {}
    call.lists = lists
  end
  local list = lists[key]
  if not list then
    list = {}
    lists[key] = list
  end
  list[id] = score
end

-- Write the keys of the instances that have changed, then their lists.
function offers.save(call)
  instances.save(call)
  local lists = call.lists
  if not lists then return end
  call.lists = nil
  for key, list in pairs(lists) do
    for id, score in pairs(list) do
      if score then redis.call('ZADD', key, score, id) else redis.call('ZREM', key, id) end
    end
  end
end

-- Do not wake an instance at its moment.
function offers.call_off(call, row)
  if row.fields.wake_at then put(call, call.prefix .. 'timers', row.id, false) end
end

-- Take an instance off all lists; before a change of its status, its pause or its dead letter.
function offers.remove(call, row)
  put(call, list_of(call, row), row.id, false)
  offers.call_off(call, row)
end

-- Note that an instance is offered; who claims it in the same call takes that back.
local function offered(call, row)
  call.offered = call.offered or {}
  call.offered[row.id] = row.fields.queue
end

-- Return when an instance is offered whose lease is lost: not before its moment if it is scheduled for later. Without a moment
-- that is never; it is listed all the same, as those who count or reap what is leased go by the lists.
local function lost_at(row)
  local fields = row.fields
  if fields.status ~= 'scheduled' then return fields.leased_until end
  return math.max(fields.leased_until, fields.wake_at or offers.NEVER)
end

-- List an instance as leased.
function offers.lease(call, row)
  if call.offered then call.offered[row.id] = nil end
  if is_held_back(row) then return end
  offers.call_off(call, row)
  local moment = lost_at(row)
  put(call, list_of(call, row), row.id, moment * 1000)
  if moment < offers.NEVER then note_due(call, row.fields.queue, moment) end
end

-- List a free instance by what it is: ready, parked, or waiting for its moment. One that is ready goes behind all others.
function offers.list(call, row)
  local fields = row.fields
  if is_held_back(row) then return end
  if fields.ready or instances.is_parked(row) then
    put(call, list_of(call, row), row.id, unlock_now(call))
    offered(call, row)
  else
    put(call, list_of(call, row), row.id, false)
    if fields.wake_at then
      put(call, call.prefix .. 'timers', row.id, fields.wake_at)
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
    put(call, list_of(call, row), row.id, unlock_now(call))
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
  put(call, call.prefix .. 'timers', id, false)
  if not row or row.fields.leased_until or row.fields.ready then return end
  instances.set(row, 'ready', 1)
  if not is_held_back(row) and not instances.is_parked(row) then
    put(call, list_of(call, row), id, moment * 1000)
    offered(call, row)
  end
end

-- Make instances ready whose moment has come; return whether more are due.
function offers.wake_due(call)
  local due = redis.call('ZRANGE', call.prefix .. 'timers', '-inf', call.now, 'BYSCORE', 'LIMIT', 0, DUE_AT_ONCE,
    'WITHSCORES')
  for number = 1, #due, 2 do wake(call, due[number], tonumber(due[number + 1])) end
  if #due > 0 then offers.save(call) end -- who asks for them reads the lists
  return #due == 2 * DUE_AT_ONCE
end

-- Whether another instance than this one waits in its queue.
function offers.others_wait(call, row)
  local key = call.prefix .. 'ready-' .. row.fields.queue
  local unwritten = call.lists and call.lists[key] or {}
  for id, score in pairs(unwritten) do
    if id ~= row.id and score and score <= unlocked(call) then return true end
  end
  for _, id in ipairs(redis.call('ZRANGE', key, '-inf', unlocked(call), 'BYSCORE', 'LIMIT', 0, 3)) do
    if id ~= row.id and unwritten[id] == nil then return true end
  end
  return false
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
