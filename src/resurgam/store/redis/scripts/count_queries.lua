-- Return how many queries of some queues are listed as claimable.
-- part: queues
-- reads only: queries-<queue> ZSET of unanswered ones by unlock; counters HASH: ready

local function count_queries(call, part)
  return queries.count(call, part)
end
