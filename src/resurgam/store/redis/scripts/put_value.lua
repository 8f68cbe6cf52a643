-- Store a value, unless one is there that is not to be replaced; return the value that is there now.
-- part: key, value, moment at which it expires or nil, whether it replaces one that is there
-- writes: value-<key> STRING, values ZSET of keys by the moment at which they expire

local function put_value(call, part)
  local key, value, expires_at, replaces = part[1], part[2], part[3], part[4]
  values.drop_expired(call)
  local name = call.prefix .. 'value-' .. key
  local known = not replaces and not values.is_expired(call, key) and redis.call('GET', name)
  if known then return known end
  redis.call('SET', name, value)
  if expires_at then
    redis.call('ZADD', call.prefix .. 'values', expires_at, key)
  else
    redis.call('ZREM', call.prefix .. 'values', key)
  end
  return value
end
