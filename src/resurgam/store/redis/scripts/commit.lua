-- Apply the outcome of an advance, whole or not at all.
-- part: see shared/commits.lua
-- reads and writes: state-<id> HASH (the fence), instances-<id> STRING, events-<id> STREAM, forgotten-<id> HASH,
--   pending-<id> STREAM, schemas-<id>, answer-<id>, covered-<id> STRING, tried-<id> SET; ready-<queue>, parked-<queue>,
--   timers ZSET; activities-<queue> ZSET, activity-<id>-<ref> HASH, work-<id> SET; promise-<promise id> HASH, promises-<id>,
--   settled-<id> ZSET; feed STREAM, counters HASH, named-*, by-* and ended-* ZSET; outbox-<target> STREAM, unsent ZSET
-- and of other instances in the partition, which it starts or sends messages to, the same

local function commit_batch(call, parts)
  return answer_each(call, parts, commits.commit)
end
