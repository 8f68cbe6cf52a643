-- Return the number of executions in each status, those of dead letters, and the names of all queues.
-- part: the names of all statuses
-- reads only: by-status-<status> ZSET, dead-instances ZSET, dead-activities ZSET, queues HASH

local function count_instances(call, part)
  local counts = {}
  for number, status in ipairs(part) do counts[number] = redis.call('ZCARD', call.prefix .. 'by-status-' .. status) end
  return {
    counts, redis.call('ZCARD', call.prefix .. 'dead-instances'), redis.call('ZCARD', call.prefix .. 'dead-activities'),
    queues.names(call),
  }
end
