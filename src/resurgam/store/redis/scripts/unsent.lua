-- Return the partitions for which effects are in the outbox.
-- part: nothing
-- reads only: unsent ZSET

local function unsent(call)
  return redis.call('ZRANGE', call.prefix .. 'unsent', 0, -1)
end
