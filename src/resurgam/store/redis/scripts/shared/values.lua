-- Values with a moment at which they expire: the ZSET values holds their keys by that moment.

local values = {}

local EXPIRED_AT_ONCE = 100 -- values that one call deletes at most, so that it stays short

function values.drop(call, key)
  redis.call('DEL', call.prefix .. 'value-' .. key)
  redis.call('ZREM', call.prefix .. 'values', key)
end

function values.is_expired(call, key)
  local expires_at = redis.call('ZSCORE', call.prefix .. 'values', key)
  return expires_at and tonumber(expires_at) <= call.now
end

function values.drop_expired(call)
  local expired =
    redis.call('ZRANGE', call.prefix .. 'values', '-inf', call.now, 'BYSCORE', 'LIMIT', 0, EXPIRED_AT_ONCE)
  for _, key in ipairs(expired) do values.drop(call, key) end
end
