-- Create an execution, unless the newest one of its entity stands in the way.
-- part: birth, attach, entry that replaces an open one, entries of its inbox, execution that it follows, offer, commit of
--   the first advance; all but the first may be nil
-- answer: { 'exists', view } or { 'created', view, claim, committed }; the view is nil if the part tells how the execution is,
--   the claim then is 1
-- writes: instances-<id> STRING, state-<id> HASH, events-<id>, feed, pending-<id> STREAM, entities-<entity id> LIST,
--   runs-<entity id>, ready-<queue>, timers, created, named-*, by-* ZSET, queues HASH, counters HASH; of an open execution that stays or is replaced
--   what `deliver` writes; with the first commit what `commit` writes

-- Return what the newest execution means for the creation of another (rules.way_past).
local function way_past(newest, attach, replace, follows)
  local closed = instances.is_closed(newest)
  if follows then return closed and newest.id == follows and 'begin' or 'leave' end
  if closed then return attach and 'leave' or 'begin' end
  return replace and not attach and 'replace' or 'deliver'
end

local function deliver_all(call, row, entries)
  for _, entry in ipairs(entries) do lifecycle.apply(call, row, entry) end
end

-- Begin an execution with nothing but its first entry. One that the offer takes is never listed as free, and its caller
-- knows all about it, unless its first commit does more than events and activities.
local function begin_alone(call, birth, offer, first)
  local row = lifecycle.add(call, birth)
  if not leases.accepts(call, row, offer) then
    offers.free(call, row, true)
    return { 'created', false, false, false }
  end
  leases.take(call, row, offer[1])
  local committed = first and commits.commit(call, first)
  local view = first and first[14] and instances.view(call, row)
  return { 'created', view or false, 1, committed or false }
end

local function create(call, part)
  local birth, attach, replace, first_entries, follows, offer, first = unpack(part, 1, 7)
  local entries = first_entries or {}
  local newest = instances.newest(call, birth[2])
  local same = newest and executions.of_attempt(call, birth[2], birth[6], birth[7]) -- created by the same part before
  if same then return { 'created', instances.view(call, same), false, false } end
  if newest then
    local way = way_past(newest, attach, replace, follows)
    if way == 'replace' then lifecycle.terminate(call, newest, replace) end
    if way == 'deliver' then deliver_all(call, newest, entries) end
    if way == 'deliver' or way == 'leave' then return { 'exists', instances.view(call, newest) } end
  end
  if #entries == 0 and not follows then return begin_alone(call, birth, offer, first) end
  local row = lifecycle.begin(call, birth)
  if newest and follows then promises.move(call, newest, row) end
  deliver_all(call, row, entries)
  local claim = leases.claim_eagerly(call, row, offer)
  local committed = claim and first and commits.commit(call, first)
  return { 'created', instances.view(call, row), claim or false, committed or false }
end

local function create_batch(call, parts)
  return answer_each(call, parts, create)
end
