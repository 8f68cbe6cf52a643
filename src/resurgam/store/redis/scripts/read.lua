-- Return the bodies of the log of an execution behind a seq.
-- part: entity id, execution id, seq
-- reads only: state-<id> HASH, events-<id> STREAM

local function read(call, part)
  local entity_id, execution_id, after = part[1], part[2], part[3]
  if redis.call('HGET', call.prefix .. 'state-' .. execution_id, 'entity_id') ~= entity_id then return {} end
  local bodies = {}
  for number, entry in ipairs(redis.call('XRANGE', call.prefix .. 'events-' .. execution_id, '(' .. after .. '-0', '+')) do
    bodies[number] = entry[2][4]
  end
  return bodies
end
