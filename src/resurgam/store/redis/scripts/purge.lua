-- Delete a closed execution, with all that belongs to it.
-- part: entity id, execution id
-- answer: 'purged', 'missing', or the status of an open execution
-- deletes: instances-<id>, state-<id>, events-<id>, forgotten-<id>, pending-<id>, schemas-<id>, answer-<id>, covered-<id>,
--   tried-<id>, work-<id>, activity-<id>-<ref>, promises-<id>, settled-<id>, promise-<promise id>, its queries, and its
--   members in entities-<entity id>, runs-<entity id>, ready-<queue>, timers, activities-<queue>, feed, created, by-*, ended

local STRINGS = { 'instances-', 'pending-', 'schemas-', 'answer-', 'covered-', 'tried-', 'work-' }

local function purge(call, part)
  local entity_id, execution_id = part[1], part[2]
  local row = instances.find(call, execution_id, entity_id)
  if not row then return 'missing' end
  if not instances.is_closed(row) then return instances.shown_status(row) end
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
  return 'purged'
end

local function purge_batch(call, parts)
  return answer_each(call, parts, purge)
end
