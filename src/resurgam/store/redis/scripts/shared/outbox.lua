-- uses: notices, unlock
-- Effects on other partitions: durable with the commit, numbered for each target, applied there once and in order.
-- Numbers grow with the time: those that a server has lost with the end of its data are not given out again, where the
-- target would take them for effects that it has applied.
-- keys: outbox-<target> STREAM n-0: at, body; unsent ZSET; counters HASH: outbox-<target>

local outbox = {}

-- Add an effect. If nobody carries it within a lease, those who look for work in this queue must.
function outbox.add(call, target, effect, queue)
  local counters, name = call.prefix .. 'counters', 'outbox-' .. target
  local number = digits(math.max(tonumber(redis.call('HGET', counters, name) or 0) + 1, call.now * 1000))
  redis.call('HSET', counters, name, number)
  redis.call('XADD', call.prefix .. name, number .. '-0', 'at', call.now, 'body', cmsgpack.pack(effect))
  redis.call('ZADD', call.prefix .. 'unsent', 'NX', call.now, target)
  note_outbox(call, target)
  note_due(call, queue, call.now + call.lease)
end

-- Delete what was applied up to a number; return the entries that follow, as a stream returns them.
function outbox.trim(call, target, number, limit)
  local key = call.prefix .. 'outbox-' .. target
  redis.call('XTRIM', key, 'MINID', digits(number + 1) .. '-0')
  local left = redis.call('XRANGE', key, '-', '+', 'COUNT', limit)
  if left[1] then
    redis.call('ZADD', call.prefix .. 'unsent', left[1][2][2], target)
  else
    redis.call('DEL', key)
    redis.call('ZREM', call.prefix .. 'unsent', target)
  end
  return left
end

-- Tell the caller about outboxes that were left behind for so long that whoever filled them must be dead.
function outbox.report(call)
  local left = redis.call('ZRANGE', call.prefix .. 'unsent', '-inf', call.now - call.lease, 'BYSCORE')
  for _, target in ipairs(left) do note_outbox(call, target) end
end

-- Return the moment at which the next one must be reported.
function outbox.next_report(call)
  local first = redis.call('ZRANGE', call.prefix .. 'unsent', string.format('(%d', call.now - call.lease), '+inf', 'BYSCORE',
    'LIMIT', 0, 1, 'WITHSCORES')
  return first[2] and tonumber(first[2]) + call.lease
end

-- Tell the caller about all of them: the process that filled them is known to be dead.
function outbox.report_all(call)
  for _, target in ipairs(redis.call('ZRANGE', call.prefix .. 'unsent', 0, -1)) do note_outbox(call, target) end
end
