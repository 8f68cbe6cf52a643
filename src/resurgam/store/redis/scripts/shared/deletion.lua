-- uses: activities, contents, executions, instances, listing, log, notices, offers, promises, queries, queues
-- Deleting executions, or all but their rows, and finding out whether they have changed before.
-- keys: instances-<id>, state-<id>, events-<id>, forgotten-<id>, pending-<id>, schemas-<id>, answer-<id>, covered-<id>,
--   tried-<id>, work-<id>, activity-<id>-<ref>, promises-<id>, settled-<id>, promise-<promise id>, its queries, and its
--   members in entities-<entity id>, runs-<entity id>, ready-<queue>, parked-<queue>, timers, activities-<queue>, feed, created,
--   named-*, by-*, ended-*, archived-*, queues

local deletion = {}

local CONTENTS = { 'pending-', 'covered-', 'tried-', 'work-' }
local ROW = { 'instances-', 'schemas-', 'answer-' }

local function drop_keys(call, row, names)
  for _, name in ipairs(names) do redis.call('DEL', call.prefix .. name .. row.id) end
end

-- Delete all that belongs to an execution but its row, and do not offer it any more.
local function empty(call, row)
  for _, activity in ipairs(activities.of_execution(call, row.id)) do activities.drop(call, activity) end
  promises.purge(call, row)
  offers.remove(call, row)
  log.purge(call, row.id)
  drop_keys(call, row, CONTENTS)
  drop_queries_of(call, row.id)
  note_log(call, row.id)
end

-- Delete an execution, open or closed, with all that belongs to it.
function deletion.delete(call, row)
  empty(call, row)
  listing.remove(call, row)
  drop_keys(call, row, ROW)
  queues.leave(call, row.fields.queue)
  executions.remove(call, row)
  instances.remove(call, row)
  note_closed(call, row.id)
end

local OF_WORK = { 'leased_until', 'owner', 'worker', 'claim', 'ready', 'tried', 'promised', 'quiet', 'last_failure' }

-- Delete all that belongs to a complete execution but its row, which says from now on where the rest is.
function deletion.archive(call, row, archive)
  local before = listing.end_of(row)
  empty(call, row)
  for _, name in ipairs(OF_WORK) do instances.set(row, name, nil) end
  instances.set(row, 'deliveries', 0)
  instances.set(row, 'archived', archive)
  listing.note_end(call, row, before)
end

-- Return a text that differs whenever anything of an execution has changed that a copy of it holds.
function deletion.version(call, row)
  local fields, key = row.fields, call.prefix
  return redis.sha1hex(cmsgpack.pack({
    instances.view(call, row), fields.epoch, fields.wake, redis.call('XLEN', key .. 'pending-' .. row.id),
    redis.call('HLEN', key .. 'forgotten-' .. row.id), contents.activities(call, row), promises.of_execution(call, row),
  }))
end
