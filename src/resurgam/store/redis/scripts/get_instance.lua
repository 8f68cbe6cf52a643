-- Return the newest execution of an entity, or the newest of a run, or the one with an id, as `seen` returns it.
-- The answer is the number of newer executions that were looked at, false if there are no more, and the one that fits.
-- part: entity id, run id or nil, execution id or nil, how many newer ones were looked at before
-- reads only: entities-<entity id> LIST, state-<id> HASH, instances-<id> STRING, letters-<id> HASH, schemas-<id> STRING

local SLICE = 200 -- executions that one call looks at, so that it stays short

local function get_instance(call, part)
  local entity_id, run_id, execution_id, newer = unpack(part, 1, 4)
  if execution_id then
    local row = instances.find(call, execution_id, entity_id)
    local fits = row and (not run_id or row.fields.run_id == run_id)
    return { false, fits and views.seen(call, row) or false }
  end
  local ids = redis.call('LRANGE', call.prefix .. 'entities-' .. entity_id, -newer - SLICE, -newer - 1)
  for number = #ids, 1, -1 do
    if not run_id or redis.call('HGET', call.prefix .. 'state-' .. ids[number], 'run_id') == run_id then
      return { false, views.seen(call, instances.find(call, ids[number])) }
    end
  end
  return { #ids == SLICE and newer + SLICE, false }
end
