-- uses: activities, executions, inbox, instances, leases, listing, log, notices, offers, queues, template
-- Executions: begun, sent events, paused, terminated.
-- keys: instances-<id> STRING, entities-<entity id> LIST, runs-<entity id> ZSET, queues HASH, and those of the files that it uses

local lifecycle = {}

local BEGINNING = { workflow_begun = true, cancel_requested = true }

-- Add an execution, which is not offered yet. birth is `parts.birth_part` of a first entry.
function lifecycle.add(call, birth, paused)
  local id, entity_id, type, body, instance, run_id, attempt, first_run = unpack(birth, 1, 8)
  local parent_key, kind, name, tree_id, parent, queue, created_at, tags, status, wake_at = unpack(birth, 9, 18)
  local row = instances.add(call, id, {
    entity_id = entity_id, run_id = run_id, attempt = attempt, first_run = first_run, parent_key = parent_key or nil,
    kind = kind, name = name, tree_id = tree_id, parent = parent or nil, queue = queue, created_at = created_at,
    tags = tags or nil, status = status, wake_at = wake_at or nil, paused = paused, last_seq = 1,
  })
  redis.call('SET', call.prefix .. 'instances-' .. id, instance)
  executions.add(call, row)
  queues.enter(call, queue)
  listing.add(call, row)
  log.append(call, id, 0, { type, body })
  return row
end

-- Add an execution that is ready to be claimed.
function lifecycle.begin(call, birth, paused)
  local row = lifecycle.add(call, birth, paused)
  offers.free(call, row, true)
  return row
end

-- Put an entry into the inbox; two kinds of them begin an instance that is scheduled for later.
function lifecycle.hand_on(call, row, entry)
  if BEGINNING[entry[1]] and row.fields.status == 'scheduled' then
    local before = instances.shown_status(row)
    offers.call_off(call, row)
    instances.set(row, 'status', 'running')
    instances.set(row, 'wake_at', nil)
    listing.show(call, row, before)
    if row.fields.leased_until then offers.lease(call, row) end
  end
  inbox.put(call, row, entry)
end

-- Pause an instance, or widen its pause to the tree; return whether that changed anything.
local function pause(call, row, entry)
  local before, tree = row.fields.paused, entry[5]
  if before == 'tree' or (before and not tree) or instances.is_closed(row) then return false end
  if not before then
    local shown = instances.shown_status(row)
    offers.remove(call, row)
    instances.set(row, 'paused', 'alone')
    activities.set_aside(call, row)
    listing.show(call, row, shown)
  end
  if tree then instances.set(row, 'paused', 'tree') end
  inbox.put(call, row, entry)
  return true
end

-- End the pause of an instance, whatever ends it.
function lifecycle.end_pause(call, row)
  instances.set(row, 'paused', nil)
  activities.take_up(call, row)
end

local function resume(call, row)
  lifecycle.end_pause(call, row)
  listing.show(call, row, 'paused')
  if row.fields.leased_until then offers.lease(call, row) else offers.list(call, row) end
end

-- Close an instance whatever its code does; a new epoch fences the worker that holds it.
function lifecycle.terminate(call, row, entry)
  local fields, before = row.fields, instances.shown_status(row)
  local seq, owner = fields.last_seq + 1, fields.owner
  local at = math.max(call.now, log.moment(call, row.id, fields.last_seq))
  log.append(call, row.id, fields.last_seq, { entry[1], fill(entry[2], { seq = seq, at = at }) })
  activities.lease_alone(call, row)
  offers.remove(call, row)
  if fields.paused then lifecycle.end_pause(call, row) end
  leases.forget_tries(call, row)
  for _, name in ipairs({ 'wake_at', 'parked', 'dead_letter' }) do instances.set(row, name, nil) end
  instances.set(row, 'status', 'terminated')
  instances.set(row, 'closed_at', call.now)
  instances.set(row, 'last_seq', seq)
  instances.set(row, 'epoch', fields.epoch + 1)
  instances.set(row, 'deliveries', 0)
  listing.show(call, row, before)
  offers.free(call, row, true)
  note_closed(call, row.id, owner)
end

-- Do what an event does to an open instance; return whether it was put into the inbox.
function lifecycle.apply(call, row, entry)
  local type, fields = entry[1], row.fields
  if type == 'workflow_terminated' then
    lifecycle.terminate(call, row, entry)
    return false
  end
  if type == 'workflow_paused' then return pause(call, row, entry) end
  if type == 'workflow_resumed' then
    if not fields.paused then return false end
    resume(call, row)
  elseif type == 'workflow_begun' and fields.status ~= 'scheduled' then
    return false
  end
  lifecycle.hand_on(call, row, entry)
  return true
end
