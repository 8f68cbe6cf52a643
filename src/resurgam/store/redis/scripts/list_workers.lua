-- Return the live workers, in the order in which they started.
-- part: nothing
-- reads only: workers ZSET of ids by the moment of their start, worker-<id> HASH

local function list_workers(call)
  return workers.show(call, (workers.known(call)))
end
