-- Notices: what a call has changed that others may wait for. The caller gets them with its answer, other processes by
-- PUBLISH, each once per call. due ZSET: queues by the moment that was last announced for each.

local last_prefix, last_channels -- most calls are those of one store

-- Return a channel: all begin with the prefix of the keys, without the partition.
local function channel(call, name)
  if last_prefix ~= call.prefix then
    last_prefix, last_channels = call.prefix, string.gsub(call.prefix, '{p%d+}:$', '')
  end
  return last_channels .. name
end

local function tell(call, kind, value, name, message)
  local told = call.told
  if not told then
    told = {}
    call.told = told
  end
  local key = name .. ' ' .. message
  if told[key] then return end
  told[key] = true
  note(call, kind, value)
  redis.call('PUBLISH', channel(call, name), message)
end

local function partition_of(call)
  return string.match(call.prefix, '{p(%d+)}:$')
end

-- Something in a queue can be claimed: an instance, an activity or a query.
local function note_work(call, queue)
  tell(call, 'work', queue, 'work:' .. queue, partition_of(call))
end

-- Something in a queue can be claimed from a moment on. It is announced if it comes before the announced one.
local function note_due(call, queue, moment)
  local key = call.prefix .. 'due'
  local announced = tonumber(redis.call('ZSCORE', key, queue) or 0)
  if announced > call.now and announced <= moment then return end
  redis.call('ZADD', key, moment, queue)
  tell(call, 'due', moment, 'work:' .. queue, partition_of(call) .. ' ' .. string.format('%.0f', moment))
end

-- Forget announced moments that have come: they count as none.
local function forget_due(call)
  redis.call('ZREMRANGEBYSCORE', call.prefix .. 'due', '-inf', call.now)
end

-- Tell the owner of a lease what has happened to it, unless it makes this call.
local function tell_owner(call, owner, event, execution_id)
  if owner and owner ~= call.owner then
    redis.call('PUBLISH', channel(call, 'owner:' .. owner), event .. ' ' .. execution_id)
  end
end

-- The inbox of an instance has a new entry; the owner of its lease hears of it.
local function note_inbox(call, execution_id, owner)
  note(call, 'inbox', execution_id)
  tell_owner(call, owner, 'inbox', execution_id)
end

-- An execution is closed; the owner of a lease that ended with it hears of it too.
local function note_closed(call, execution_id, owner)
  tell(call, 'closed', execution_id, 'closed:' .. execution_id, '')
  tell_owner(call, owner, 'closed', execution_id)
end

-- A log has grown, and the feed with it. Every step does this, so all logs share a channel, and a call tells of all of them
-- together, as MessagePack: an id may have any character. The caller gets no notice: those who follow a log listen to the
-- channel in its process too.
local function note_log(call, execution_id)
  local grown = call.grown
  if not grown then
    call.grown = { execution_id }
  elseif grown[#grown] ~= execution_id then
    grown[#grown + 1] = execution_id
  end
end

local function announce_logs(call)
  if call.grown then redis.call('PUBLISH', channel(call, 'log'), cmsgpack.pack(call.grown)) end
end

local function note_topic(call, topic)
  tell(call, 'topic', topic, 'topic:' .. topic, '')
end

local function note_query(call, query_id)
  tell(call, 'query', query_id, 'query:' .. query_id, '')
end

-- The outbox for a partition is not empty; only stores that hear it from a call of their own drive it.
local function note_outbox(call, target)
  if call.outboxes and call.outboxes[target] then return end
  call.outboxes = call.outboxes or {}
  call.outboxes[target] = true
  note(call, 'outbox', target)
end
