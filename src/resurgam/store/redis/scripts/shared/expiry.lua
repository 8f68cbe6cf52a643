-- uses: notices, queries, topics, values
-- What expires by itself is deleted by those who write more of it, a bounded number at a time, and by purges: so
-- nothing of it stays behind the executions that have made it.
-- keys: topics ZSET, topic-<name> STREAM, values ZSET, value-<key> STRING, queries ZSET, query-<query id> HASH, due ZSET

local function drop_all_expired(call)
  drop_silent_topics(call, call.now - MESSAGES_KEPT)
  values.drop_expired(call)
  queries.drop_expired(call)
  forget_due(call)
end
