-- Return the value of a key, unless it has expired.
-- part: key
-- reads only: value-<key> STRING, values ZSET of keys by the moment at which they expire

local function get_value(call, part)
  local key = part[1]
  return not values.is_expired(call, key) and redis.call('GET', call.prefix .. 'value-' .. key)
end
