-- uses: activities, effects, inbox, instances, leases, lifecycle, listing, log, notices, offers, promises, template
-- Commits: the fence, the log, the inbox, activities, the status, then effects.
--
-- A part is { entity id, execution id, epoch, base seq, wake, worker, release, events, running, activities, room, wake_at,
-- answered, rest }. events are types and bodies in turn, running are refs and MessagePacked requests in turn, activities
-- are { ref, queue, whether the commit claims it, the MessagePack of { ref, queue, JSON } }, room is how many of them the
-- lease may cover. rest is nil for most commits; see `apply`, `send` and `update` for what it holds.

local commits = {}

local TRIED_KEPT = 1000 -- rules.TRIED_KEPT
local NOTHING = {}
local PLAIN = { NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, false, false, 'running' }
local TERMINAL = { completed = true, failed = true, cancelled = true, terminated = true, continued = true }

-- Return the row of a commit that may be applied, or nil and the reason why not.
local function check(call, part)
  local entity_id, execution_id, epoch, base_seq, seen = unpack(part, 1, 5)
  local row, reason = leases.held(call, entity_id, execution_id, epoch)
  if not row then return nil, reason end
  if row.fields.last_seq ~= base_seq then
    return nil, 'the log is at ' .. row.fields.last_seq .. ', not at ' .. base_seq
  end
  local rest = part[14]
  if rest and rest[10] and inbox.overtakes(call, row, seen) then
    return nil, 'unseen entries in the inbox overtake this strict commit'
  end
  return row
end

-- Return which of the activities of a commit it claims: those that it names, unless older work waits in their queue.
local function choose(call, row, requests)
  local claimed = {}
  if row.fields.paused then return claimed end
  for _, request in ipairs(requests) do
    if request[3] and not activities.wait_in(call, request[2]) then claimed[#claimed + 1] = request[1] end
  end
  return claimed
end

-- Put the activities of a commit on their queues; return those that the lease covers from now on, by ref.
local function dispatch(call, row, part, claimed)
  local worker, running, requests, room = part[6], part[9], part[10], part[11]
  local covered, refs, left = {}, {}, room
  for number = 1, #running, 2 do covered[running[number]] = running[number + 1] end
  for _, ref in ipairs(claimed) do refs[ref] = true end
  for _, request in ipairs(requests) do
    if not refs[request[1]] then
      activities.schedule(call, row, cmsgpack.unpack(request[4]))
    elseif left > 0 then
      left = left - 1
      covered[request[1]] = request[4]
    else
      activities.schedule_claimed(call, row, cmsgpack.unpack(request[4]), worker)
    end
  end
  return covered
end

local function withdraw(call, row, withdrawals, covered)
  for _, withdrawal in ipairs(withdrawals) do
    local ref, answered, never_started, entry = unpack(withdrawal, 1, 4)
    local gone = activities.withdraw(call, row, ref, answered, never_started)
    if not gone and covered[ref] and answered and not never_started then
      covered[ref] = nil
      gone = true
    end
    if gone and entry then inbox.put(call, row, entry) end
  end
end

local function drop_answered(call, row, refs)
  for _, ref in ipairs(refs) do
    local activity = activities.find(call, row.id, ref)
    if activity then activities.drop(call, activity) end
  end
end

local function packed_in_order(covered)
  local refs, packed = {}, {}
  for ref in pairs(covered) do refs[#refs + 1] = ref end
  table.sort(refs)
  for number, ref in ipairs(refs) do packed[number] = covered[ref] end
  return packed
end

-- Update the instance by the outcome of a commit.
local function update(call, row, part, rest)
  local fields, before, parked_before = row.fields, instances.shown_status(row), instances.is_parked(row)
  local status, parked, deactivated, schemas, failure, answer, instance, tags = unpack(rest, 11, 18)
  if status == 'scheduled' and fields.status == 'running' then status = 'running' end
  local later = status == 'scheduled' or fields.status == 'scheduled'
  local closes = TERMINAL[status] and not fields.closed_at
  if parked_before ~= (status == 'diverged') then offers.remove(call, row) end
  local resumes = TERMINAL[status] and fields.paused
  if resumes then lifecycle.end_pause(call, row) end
  local end_before = listing.end_of(row)
  if closes then instances.set(row, 'closed_at', call.now) end
  instances.set(row, 'status', status)
  instances.set(row, 'deactivated', deactivated and 1 or nil)
  instances.set(row, 'last_seq', fields.last_seq + #part[8] / 2)
  instances.set(row, 'wake_at', part[12] or nil)
  instances.set(row, 'parked', parked or nil)
  instances.set(row, 'deliveries', 0)
  instances.set(row, 'last_failure', nil)
  if failure then instances.set(row, 'failure', failure) end
  if schemas then redis.call('SET', call.prefix .. 'schemas-' .. row.id, schemas) end
  if answer then redis.call('SET', call.prefix .. 'answer-' .. row.id, answer) end
  if instance then
    redis.call('SET', call.prefix .. 'instances-' .. row.id,
      fill(instance, { status = status, closed_at = fields.closed_at }))
  end
  if tags then listing.retag(call, row, tags ~= '' and tags or nil) end
  listing.show(call, row, before)
  listing.note_end(call, row, end_before)
  if closes then note_closed(call, row.id) end
  if status == 'diverged' then
    local tried = call.prefix .. 'tried-' .. row.id
    if redis.call('SISMEMBER', tried, part[6]) == 0 and redis.call('SCARD', tried) >= TRIED_KEPT then
      redis.call('SPOP', tried)
    end
    redis.call('SADD', tried, part[6])
    instances.set(row, 'tried', 1)
  end
  if resumes or later or parked_before ~= instances.is_parked(row) then offers.lease(call, row) end
end

-- Apply what few commits have: promises, effects, a successor.
local function send(call, row, rest, paused)
  local opened, closed, list, successor = unpack(rest, 6, 9)
  for _, promise in ipairs(opened) do promises.open(call, row, promise[1], promise[2], promise[3]) end
  for _, promise_id in ipairs(closed) do promises.close(call, row, promise_id) end
  effects.send(call, row, list, paused, successor)
  if successor then effects.begin_successor(call, row, successor[1], successor[2], successor[3], paused) end
end

-- Return whether the lease covers activities from now on.
local function apply(call, row, part, rest, claimed)
  local consumed, forgotten, dropped, retries, withdrawals = unpack(rest, 1, 5)
  log.append(call, row.id, row.fields.last_seq, part[8])
  if #forgotten > 0 then log.forget(call, row.id, forgotten) end
  if #dropped > 0 then log.drop(call, row.id, dropped) end
  inbox.consume(call, row, consumed)
  local covered = dispatch(call, row, part, claimed)
  drop_answered(call, row, part[13])
  for _, retry in ipairs(retries) do activities.add_pending(call, row, retry[1], retry[2]) end
  withdraw(call, row, withdrawals, covered)
  activities.cover(call, row, packed_in_order(covered))
  local paused = row.fields.paused
  update(call, row, part, rest)
  if rest ~= PLAIN then send(call, row, rest, paused) end
  return next(covered) ~= nil
end

-- Apply an outcome if the lease holds and the log is where the advance began. Return the reason of a refusal;
-- else the wake counter, the entries since the one that the commit has seen, and the refs of what it has claimed.
function commits.commit(call, part)
  local row, reason = check(call, part)
  if not row then return reason end
  local epoch, seen, release = part[3], part[5], part[7]
  local claimed = choose(call, row, part[10])
  local covers = apply(call, row, part, part[14] or PLAIN, claimed)
  local fields = row.fields
  if fields.epoch ~= epoch then return { fields.wake, NOTHING, claimed } end -- a message has terminated its own sender
  if release and #claimed == 0 then
    if covers then activities.lease_alone(call, row, call.now + call.lease) end
    offers.free(call, row, fields.wake ~= seen)
    log.compact(call, row.id, fields.last_seq)
    return { fields.wake, NOTHING, claimed }
  end
  return { fields.wake, inbox.since(call, row, seen), claimed }
end
