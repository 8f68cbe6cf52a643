-- uses: inbox, instances, log, notices, queues, unlock
-- Activities without an answer. Those that the lease on their instance covers have no key of their own; they get one when
-- that lease ends without them, or when a verb names one. Those of a paused instance are set aside, with their unlock.
-- keys: activity-<execution id>-<ref> HASH, activities-<queue> ZSET, work-<id> SET, covered-<id> STRING,
--   letters-<id> HASH, dead-activities ZSET

local activities = {}

local REDELIVERIES = 20 -- rules.REDELIVERIES
local NUMBERS = {
  aside = true, attempt = true, deliveries = true, epoch = true, heartbeat_at = true, leased_until = true, ref = true,
  visible_at = true,
}

local function id_of(execution_id, ref)
  return execution_id .. '-' .. ref
end

local function load(call, id)
  local flat = redis.call('HGETALL', call.prefix .. 'activity-' .. id)
  if #flat == 0 then return nil end
  local activity = { id = id }
  for number = 1, #flat, 2 do
    local name, value = flat[number], flat[number + 1]
    activity[name] = NUMBERS[name] and tonumber(value) or value
  end
  return activity
end

-- List an activity among the dead letters if it is one, otherwise take it off.
local function list_dead_letter(call, activity)
  local letters, all = call.prefix .. 'letters-' .. activity.execution_id, call.prefix .. 'dead-activities'
  if activity.dead_letter then
    redis.call('HSET', letters, activity.ref, activity.dead_letter)
    redis.call('ZADD', all, call.now, activity.id)
  else
    redis.call('HDEL', letters, activity.ref)
    redis.call('ZREM', all, activity.id)
  end
end

-- Change fields of an activity; false removes one.
local function change(call, activity, changes)
  local set, gone = {}, {}
  for name, value in pairs(changes) do
    if value == false then
      gone[#gone + 1] = name
      activity[name] = nil
    else
      set[#set + 1] = name
      set[#set + 1] = value
      activity[name] = value
    end
  end
  local key = call.prefix .. 'activity-' .. activity.id
  if #set > 0 then redis.call('HSET', key, unpack(set)) end
  if #gone > 0 then redis.call('HDEL', key, unpack(gone)) end
  if changes.dead_letter ~= nil then list_dead_letter(call, activity) end
end

-- Take an activity off its queue.
local function unlist(call, activity)
  redis.call('ZREM', call.prefix .. 'activities-' .. activity.queue, activity.id)
  if call.waiting then call.waiting[activity.queue] = nil end
end

-- List an activity by its unlock, or set it aside.
local function list(call, row, activity, unlock)
  if row.fields.paused then
    change(call, activity, { aside = unlock })
    return
  end
  redis.call('ZADD', call.prefix .. 'activities-' .. activity.queue, unlock, activity.id)
  if is_to_come(call, unlock) then
    note_due(call, activity.queue, math.floor(unlock / 1000))
  else
    note_work(call, activity.queue)
  end
  if call.waiting then call.waiting[activity.queue] = nil end
end

-- Return the activity of an execution; nil if it has no key.
function activities.find(call, execution_id, ref)
  return load(call, id_of(execution_id, ref))
end

-- Return all activities of an execution that have a key.
function activities.of_execution(call, execution_id)
  local found = {}
  for _, ref in ipairs(redis.call('SMEMBERS', call.prefix .. 'work-' .. execution_id)) do
    found[#found + 1] = load(call, id_of(execution_id, ref))
  end
  table.sort(found, function(a, b) return a.ref < b.ref end)
  return found
end

-- Delete an activity.
function activities.drop(call, activity)
  redis.call('DEL', call.prefix .. 'activity-' .. activity.id)
  redis.call('SREM', call.prefix .. 'work-' .. activity.execution_id, activity.ref)
  queues.leave(call, activity.queue)
  unlist(call, activity)
  if activity.dead_letter then
    activity.dead_letter = nil
    list_dead_letter(call, activity)
  end
end

-- Add an activity for a request { ref, queue, JSON }, and list it.
local function add(call, row, request, fields, unlock)
  local activity = { id = id_of(row.id, request[1]) }
  fields.execution_id, fields.ref, fields.queue, fields.request = row.id, request[1], request[2], request[3]
  change(call, activity, fields)
  redis.call('SADD', call.prefix .. 'work-' .. row.id, activity.ref)
  queues.enter(call, activity.queue)
  if unlock then list(call, row, activity, unlock) end
  return activity
end

-- Put an activity on its queue. Its epoch is that of an eager claim; a later claim has another.
function activities.schedule(call, row, request)
  add(call, row, request, { visible_at = call.now, attempt = 1, epoch = 1, deliveries = 0 }, unlock_now(call))
end

-- Add an activity that the commit which schedules it has claimed.
function activities.schedule_claimed(call, row, request, worker)
  local until_ = call.now + call.lease
  local lease = { leased_until = until_, owner = call.owner, worker = worker, claim = call.number }
  local fields = { visible_at = call.now, attempt = 1, epoch = 1, deliveries = 1 }
  for name, value in pairs(lease) do fields[name] = value end
  add(call, row, request, fields, until_ * 1000)
end

-- Add an activity as it is given by `records.Pending`: a further attempt, or one of an adopted execution.
function activities.add_pending(call, row, request, pending)
  local visible_at, attempt, deliveries, dead_letter, details, heartbeat_at = unpack(pending, 1, 6)
  local known = activities.find(call, row.id, request[1])
  if known then activities.drop(call, known) end
  local fields = {
    visible_at = visible_at,
    attempt = attempt,
    deliveries = deliveries,
    epoch = known and known.epoch or 0,
    dead_letter = dead_letter or nil,
    details = details or (known and known.details) or nil,
    heartbeat_at = heartbeat_at or (known and known.heartbeat_at) or nil,
  }
  local unlock = not dead_letter and (visible_at <= call.now and unlock_now(call) or visible_at * 1000) or nil
  add(call, row, request, fields, unlock)
end

-- Whether activities wait in a queue; a call asks once, unless it changes the queue.
function activities.wait_in(call, queue)
  local waiting = call.waiting or {}
  call.waiting = waiting
  if waiting[queue] == nil then
    local first = redis.call('ZRANGE', call.prefix .. 'activities-' .. queue, '0', '0', 'WITHSCORES')
    local unlock = tonumber(first[2])
    waiting[queue] = unlock ~= nil and unlock <= unlocked(call) and not is_to_come(call, unlock)
  end
  return waiting[queue]
end

-- Return up to limit activities of some queues whose time has come, each as its unlock, its id and its queue, in order.
function activities.claimable(call, queues, limit)
  local found = {}
  for _, queue in ipairs(queues) do take_claimable(call, 'activities-', queue, limit, found) end
  table.sort(found, function(a, b) return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2]) end)
  for number = #found, limit + 1, -1 do found[number] = nil end
  return found
end

-- Return how many activities wait in some queues, at least; more if the clock was set back.
function activities.count(call, queues)
  local count = 0
  for _, queue in ipairs(queues) do
    count = count + redis.call('ZCOUNT', call.prefix .. 'activities-' .. queue, '-inf', unlocked(call))
  end
  return count
end

-- Activities that the lease on their instance covers.

local function covered_key(call, row)
  return call.prefix .. 'covered-' .. row.id
end

-- Return them as requests { ref, queue, JSON }.
function activities.covered(call, row)
  local packed = row.fields.leased_until and redis.call('GET', covered_key(call, row))
  return packed and cmsgpack.unpack(packed) or {}
end

-- Replace them by those that are given, each as the MessagePack of a request.
function activities.cover(call, row, packed)
  local count = #packed
  if count == 0 then
    redis.call('DEL', covered_key(call, row))
    return
  end
  local head = count < 16 and string.char(0x90 + count) or string.char(0xdc, math.floor(count / 256), count % 256)
  redis.call('SET', covered_key(call, row), head .. table.concat(packed))
end

local function add_covered(call, row, request, fields, unlock)
  if redis.call('EXISTS', call.prefix .. 'activity-' .. id_of(row.id, request[1])) == 1 then return end
  fields.visible_at, fields.attempt, fields.epoch = log.moment(call, row.id, request[1]), 1, 0
  add(call, row, request, fields, unlock)
end

local function lease_covered(call, row, request, until_)
  local lease = { deliveries = 1, leased_until = until_, owner = row.fields.owner, worker = row.fields.worker }
  add_covered(call, row, request, lease, until_ * 1000)
end

-- Put what the lease has covered back on its queues.
function activities.put_back(call, row, deliveries)
  for _, request in ipairs(activities.covered(call, row)) do
    add_covered(call, row, request, { deliveries = deliveries }, unlock_now(call))
  end
  redis.call('DEL', covered_key(call, row))
end

-- Give what the lease has covered leases of its own, for the same time or until a moment.
function activities.lease_alone(call, row, until_)
  for _, request in ipairs(activities.covered(call, row)) do
    lease_covered(call, row, request, until_ or row.fields.leased_until)
  end
  redis.call('DEL', covered_key(call, row))
end

-- Give one of them a lease of its own, if the lease on the instance covers it.
local function lease_named(call, row, ref)
  local left, named = {}, nil
  for _, request in ipairs(activities.covered(call, row)) do
    if request[1] == ref then
      named = request
    else
      left[#left + 1] = cmsgpack.pack(request)
    end
  end
  if not named then return end
  lease_covered(call, row, named, row.fields.leased_until)
  activities.cover(call, row, left)
end

-- Leases.

-- Return an activity that is leased under an epoch, or nil and the reason why not. With epoch 0 it has been covered; then
-- one that is at the given attempt counts under any lease.
function activities.held(call, row, ref, epoch, attempt)
  if row and epoch == 0 then lease_named(call, row, ref) end
  local activity = row and activities.find(call, row.id, ref)
  if not activity then return nil, 'the activity is answered or withdrawn' end
  if epoch == 0 and attempt then
    if activity.attempt == attempt then return activity end
    return nil, 'the activity is at another attempt'
  end
  if activity.epoch ~= epoch or not activity.leased_until then return nil, 'the lease of the activity is lost' end
  return activity
end

-- Renew the lease of an activity, and keep the details of its last heartbeat.
function activities.extend(call, row, activity, details, heartbeat_at)
  local changes = { leased_until = call.now + call.lease }
  if details then changes.details = details end
  if heartbeat_at then changes.heartbeat_at = heartbeat_at end
  change(call, activity, changes)
  list(call, row, activity, activity.leased_until * 1000)
end

-- End the lease of an activity: it is offered again, or with a reason a dead letter.
function activities.release(call, row, activity, delivered, dead_letter)
  local changes = { leased_until = false, owner = false, worker = false, claim = false, dead_letter = dead_letter or nil }
  if not delivered then changes.deliveries = math.max(0, activity.deliveries - 1) end
  change(call, activity, changes)
  if dead_letter then
    if activity.aside then change(call, activity, { aside = false }) end -- the end of a pause must not list it
    unlist(call, activity)
  else
    list(call, row, activity, unlock_now(call))
  end
end

-- Schedule the next attempt of an activity.
function activities.retry(call, row, activity, next_at, details, heartbeat_at)
  local changes = {
    attempt = activity.attempt + 1, deliveries = 0, visible_at = next_at, leased_until = false, owner = false,
    worker = false, claim = false, aside = false, dead_letter = false,
  }
  if activity.dead_letter then changes.dead_letter = false end
  if details then changes.details = details end
  if heartbeat_at then changes.heartbeat_at = heartbeat_at end
  change(call, activity, changes)
  list(call, row, activity, next_at <= call.now and unlock_now(call) or next_at * 1000)
end

local function dead_letter_of(activity)
  -- The encoder writes the name behind the ref, or behind a prepared entry; one with escapes is shown as it is written.
  local name = string.match(activity.request, '^{"ref":%d+,"name":"([^"]*)"')
    or string.match(activity.request, '^{"ref":%d+,"starts":{.-},"name":"([^"]*)"') or '?'
  local quote = string.find(name, "'", 1, true) and '"' or "'"
  return 'activity ' .. quote .. name .. quote .. ' (entry ' .. activity.ref .. ') was handed out ' .. activity.deliveries
    .. ' times without an answer'
end

-- Put the entry that the claim of an activity starts into the inbox, with the number of the delivery.
local function put_start(call, row, activity)
  -- The encoder writes it behind the ref, and the name behind it.
  local prepared = string.match(activity.request, '^{"ref":%d+,"starts":({.-)},"name":"')
  if not prepared then return end
  local type = string.match(prepared, '"type":"([^"]*)"')
  inbox.put_quietly(call, row, type, prepared .. ',"attempt":' .. activity.deliveries .. '}')
end

-- Lease an activity by its id; nil if it must not run again. cancelled is the entry for one whose workflow is closed, unless it
-- outlives the workflow.
function activities.claim(call, queue, id, worker, cancelled)
  local activity = load(call, id)
  local row = activity and instances.find(call, activity.execution_id)
  if not row then
    unlist(call, { queue = queue, id = id }) -- whatever has left it there, it must not be in the way of others
    return nil
  end
  -- The encoder writes this field last, and only if it is true.
  local outlives = string.sub(activity.request, -16) == '"outlives":true}'
  if instances.is_closed(row) and not outlives then
    activities.drop(call, activity)
    inbox.put(call, row, cancelled, { at = call.now, ref = activity.ref })
    return nil
  end
  if activity.deliveries >= REDELIVERIES then
    unlist(call, activity)
    change(call, activity, {
      dead_letter = dead_letter_of(activity), leased_until = false, owner = false, worker = false, claim = false,
    })
    return nil
  end
  local until_ = call.now + call.lease
  change(call, activity, {
    deliveries = activity.deliveries + 1, epoch = activity.epoch + 1, leased_until = until_, owner = call.owner,
    worker = worker, claim = call.number,
  })
  list(call, row, activity, until_ * 1000)
  put_start(call, row, activity)
  return {
    row.fields.entity_id, row.id, activity.epoch, activity.ref, activity.attempt, activity.deliveries - 1,
    activity.request, activity.details or false,
  }
end

-- Withdraw an activity that is no longer wanted, unless a worker has begun it and may finish; return whether it is gone.
function activities.withdraw(call, row, ref, answered, never_started)
  local activity = activities.find(call, row.id, ref)
  if not activity then return false end
  local begun = activity.leased_until or activity.deliveries > 0 or activity.attempt > 1
  if (never_started and begun) or (not answered and activity.leased_until) then return false end
  activities.drop(call, activity)
  return true
end

-- Pauses and dead letters.

-- Take the activities of an instance that is paused off their queues.
function activities.set_aside(call, row)
  for _, activity in ipairs(activities.of_execution(call, row.id)) do
    local key = call.prefix .. 'activities-' .. activity.queue
    local unlock = redis.call('ZSCORE', key, activity.id)
    if unlock then
      change(call, activity, { aside = unlock })
      unlist(call, activity)
    end
  end
end

-- Put them back with the unlocks that they had.
function activities.take_up(call, row)
  for _, activity in ipairs(activities.of_execution(call, row.id)) do
    if activity.aside then
      local unlock = activity.aside
      change(call, activity, { aside = false })
      list(call, row, activity, unlock)
    end
  end
end

-- Offer dead letters among the activities of an instance again; return how many.
function activities.revive(call, row)
  local count = 0
  for _, activity in ipairs(activities.of_execution(call, row.id)) do
    if activity.dead_letter then
      change(call, activity, { dead_letter = false, deliveries = 0 })
      list(call, row, activity, unlock_now(call))
      count = count + 1
    end
  end
  return count
end
