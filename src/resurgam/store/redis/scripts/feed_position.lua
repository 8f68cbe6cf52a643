-- Return the position of the newest event of the feed, even if it was deleted.
-- part: nothing
-- reads only: counters HASH: feed

local function feed_position(call)
  return tonumber(redis.call('HGET', call.prefix .. 'counters', 'feed') or 0)
end
