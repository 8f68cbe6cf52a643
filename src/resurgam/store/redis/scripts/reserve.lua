-- Append the entry that says that a complete execution is being archived, unless there is more to come in its log.
-- part: entity id, execution id, seq, type, body
-- answer: 1, or 0 if the execution has changed: it is gone, not complete or archived, has unread entries or another last seq
-- writes: state-<id> HASH, events-<id>, feed STREAM, counters HASH

local function reserve(call, part)
  local entity_id, execution_id, seq, type, body = unpack(part, 1, 5)
  local row = instances.find(call, execution_id, entity_id)
  if not row or not row.fields.deactivated or row.fields.archived or row.fields.last_seq + 1 ~= seq then return 0 end
  if redis.call('XLEN', call.prefix .. 'pending-' .. execution_id) > 0 then return 0 end
  instances.set(row, 'last_seq', log.append(call, execution_id, row.fields.last_seq, { type, body }))
  return 1
end

local function reserve_batch(call, parts)
  return answer_each(call, parts, reserve)
end
