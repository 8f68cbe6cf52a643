-- Return what an adoption must know: the executions of an entity, oldest first, those with some ids, and those that hold
-- some promises; each as `instances.view` returns it, or false if it is not here.
-- part: entity id, execution ids, promise ids
-- reads only: entities-<entity id> LIST, state-<id> HASH, instances-<id> and schemas-<id> STRING,
--   promise-<promise id> HASH

local function find_executions(call, part)
  local entity_id, ids, promise_ids = part[1], part[2], part[3]
  local known, found, holders = {}, {}, {}
  for number, row in ipairs(instances.of_entity(call, entity_id)) do known[number] = instances.view(call, row) end
  for number, id in ipairs(ids) do
    local row = instances.find(call, id)
    found[number] = row and instances.view(call, row) or false
  end
  for number, promise_id in ipairs(promise_ids) do
    local holder = redis.call('HGET', call.prefix .. 'promise-' .. promise_id, 'execution_id')
    local row = holder and instances.find(call, holder)
    holders[number] = row and instances.view(call, row) or false
  end
  return { known, found, holders }
end
