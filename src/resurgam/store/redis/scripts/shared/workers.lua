-- Workers that serve the store: the ZSET workers holds their ids by the moment of their start, worker-<id> the rest.

local workers = {}

function workers.drop(call, id)
  redis.call('ZREM', call.prefix .. 'workers', id)
  redis.call('DEL', call.prefix .. 'worker-' .. id)
end

-- Return the ids of all workers, those that are alive and those that were not seen for too long.
function workers.known(call)
  local alive, expired = {}, {}
  for _, id in ipairs(redis.call('ZRANGE', call.prefix .. 'workers', 0, -1)) do
    local until_ = tonumber(redis.call('HGET', call.prefix .. 'worker-' .. id, 'until') or 0)
    local ids = until_ > call.now and alive or expired
    ids[#ids + 1] = id
  end
  return alive, expired
end

function workers.show(call, ids)
  local shown = {}
  for number, id in ipairs(ids) do
    shown[number] = redis.call('HMGET', call.prefix .. 'worker-' .. id, 'body', 'started_at', 'seen_at')
  end
  return shown
end

-- Remove the workers of an owner that is dead.
function workers.drop_of_owner(call, owner)
  for _, id in ipairs(redis.call('ZRANGE', call.prefix .. 'workers', 0, -1)) do
    if redis.call('HGET', call.prefix .. 'worker-' .. id, 'owner') == owner then workers.drop(call, id) end
  end
end
