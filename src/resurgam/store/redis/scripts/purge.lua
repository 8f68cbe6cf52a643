-- Delete a closed execution, with all that belongs to it, and some of what has expired.
-- part: entity id, execution id
-- answer: 'purged', 'missing', or the status of an open execution
-- deletes: what shared/deletion.lua does, and what shared/expiry.lua does

local function purge(call, part)
  local entity_id, execution_id = part[1], part[2]
  local row = instances.find(call, execution_id, entity_id)
  if not row then return 'missing' end
  if not instances.is_closed(row) then return instances.shown_status(row) end
  deletion.delete(call, row)
  return 'purged'
end

local function purge_batch(call, parts)
  drop_all_expired(call)
  return answer_each(call, parts, purge)
end
