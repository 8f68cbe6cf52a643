-- Remove a worker that has stopped.
-- part: id
-- writes: workers ZSET of ids by the moment of their start, worker-<id> HASH

local function remove_worker(call, part)
  workers.drop(call, part[1])
end
