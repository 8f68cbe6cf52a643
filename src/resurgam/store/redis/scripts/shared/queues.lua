-- Queues in use: a HASH of their names, with how many executions and activities name each. One that none names is forgotten, so
-- that a queue of one machine or one customer leaves nothing behind.
-- keys: queues HASH

local queues = {}

local function add(call, queue, number)
  return redis.call('HINCRBY', call.prefix .. 'queues', queue, number)
end

function queues.enter(call, queue)
  add(call, queue, 1)
end

function queues.leave(call, queue)
  if add(call, queue, -1) <= 0 then redis.call('HDEL', call.prefix .. 'queues', queue) end
end

function queues.names(call)
  return redis.call('HKEYS', call.prefix .. 'queues')
end
