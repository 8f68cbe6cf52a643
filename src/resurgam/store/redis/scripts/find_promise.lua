-- Return the promise that a delivery is addressed to, as `promises.view` and `views.seen` return it and its execution;
-- false if there is none. By name it is the oldest open one of the execution, or the oldest if none is open.
-- part: promise id or nil, entity id, execution id or nil for the newest, name
-- reads only: promise-<promise id> HASH, promises-<id> and settled-<id> ZSET, entities-<entity id> LIST, state-<id> HASH,
--   instances-<id> and schemas-<id> STRING, letters-<id> HASH

local function find_promise(call, part)
  local promise_id, entity_id, execution_id, name = unpack(part, 1, 4)
  local row
  if promise_id then
    local holder = redis.call('HGET', call.prefix .. 'promise-' .. promise_id, 'execution_id')
    row = holder and instances.find(call, holder)
  else
    row = execution_id and instances.find(call, execution_id)
    if not execution_id then row = instances.newest(call, entity_id) end
    promise_id = row and name and promises.named(call, row, name)
  end
  return row and promise_id and { promises.view(call, promise_id), views.seen(call, row) }
end
