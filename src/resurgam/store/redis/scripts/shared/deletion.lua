-- uses: activities, contents, executions, instances, listing, log, notices, offers, promises, queries
-- Deleting executions, and finding out whether they have changed before.
-- keys: instances-<id>, state-<id>, events-<id>, forgotten-<id>, pending-<id>, schemas-<id>, answer-<id>, covered-<id>,
--   tried-<id>, work-<id>, activity-<id>-<ref>, promises-<id>, settled-<id>, promise-<promise id>, its queries, and its
--   members in entities-<entity id>, runs-<entity id>, ready-<queue>, parked-<queue>, timers, activities-<queue>, feed, created, by-*, ended

local deletion = {}

local STRINGS = { 'instances-', 'pending-', 'schemas-', 'answer-', 'covered-', 'tried-', 'work-' }

-- Delete an execution, open or closed, with all that belongs to it.
function deletion.delete(call, row)
  local execution_id = row.id
  for _, activity in ipairs(activities.of_execution(call, execution_id)) do activities.drop(call, activity) end
  promises.purge(call, row)
  offers.remove(call, row)
  listing.remove(call, row)
  log.purge(call, execution_id)
  for _, name in ipairs(STRINGS) do redis.call('DEL', call.prefix .. name .. execution_id) end
  executions.remove(call, row)
  drop_queries_of(call, execution_id)
  instances.remove(call, row)
  note_closed(call, execution_id)
  note_log(call, execution_id)
end

-- Return a text that differs whenever anything of an execution has changed that a copy of it holds.
function deletion.version(call, row)
  local fields, key = row.fields, call.prefix
  return redis.sha1hex(cmsgpack.pack({
    instances.view(call, row), fields.epoch, fields.wake, redis.call('XLEN', key .. 'pending-' .. row.id),
    redis.call('HLEN', key .. 'forgotten-' .. row.id), contents.activities(call, row), promises.of_execution(call, row),
  }))
end
