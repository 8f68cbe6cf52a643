-- uses: notices
-- Messages on topics. Those of all topics of a partition are numbered together, and cursors are such numbers: they stay
-- valid when a topic without recent messages is deleted.
-- keys: topic-<name> STREAM n-0: at, body; topics ZSET of names by the moment of their last message; counters HASH: topics

local MESSAGES_KEPT = 60000 -- milliseconds (rules.MESSAGES_KEPT)
local TOPICS_AT_ONCE = 100 -- topics or messages that one call deletes at most, so that it stays short

local function drop_old_messages(call, key, before)
  local old = redis.call('XRANGE', key, '-', '+', 'COUNT', TOPICS_AT_ONCE)
  for _, message in ipairs(old) do
    if tonumber(message[2][2]) >= before then return end
    redis.call('XDEL', key, message[1])
  end
end

-- Delete topics that have no recent message.
local function drop_silent_topics(call, before)
  local silent = redis.call(
    'ZRANGE', call.prefix .. 'topics', '-inf', '(' .. before, 'BYSCORE', 'LIMIT', 0, TOPICS_AT_ONCE)
  for _, name in ipairs(silent) do
    redis.call('DEL', call.prefix .. 'topic-' .. name)
    redis.call('ZREM', call.prefix .. 'topics', name)
  end
end

-- Keep a message, and delete those that are too old.
local function publish(call, topic, body)
  local before = call.now - MESSAGES_KEPT
  drop_silent_topics(call, before)
  local key = call.prefix .. 'topic-' .. topic
  drop_old_messages(call, key, before)
  local number = redis.call('HINCRBY', call.prefix .. 'counters', 'topics', 1)
  redis.call('XADD', key, number .. '-0', 'at', call.now, 'body', body)
  redis.call('ZADD', call.prefix .. 'topics', call.now, topic)
  note_topic(call, topic)
end
