-- Return how far an execution has come: last_seq, wake, status; nil if there is none.
-- part: execution id
-- reads only: state-<id> HASH

local function progress(call, part)
  local found = redis.call('HMGET', call.prefix .. 'state-' .. part[1], 'last_seq', 'wake', 'status')
  if not found[3] then return nil end
  return { tonumber(found[1] or 0), tonumber(found[2] or 0), found[3] }
end
