-- Commit a step: it only extends the log of a running instance, and claims what it schedules, on one queue, all of it
-- covered by the lease, which it keeps. Most commits are steps, so they have a path of their own, which equals the one of
-- shared/commits.lua and costs a fraction of it. If anything about the instance is unusual, that one decides.
-- part: entity id, execution id, epoch and wake as text, base seq, worker, release, MessagePack of the requests that the
--   lease covers then (empty for none), how many of them ran before, queue of the new ones (empty for none), then types and
--   bodies of events in turn
-- answer: 1, or that of `commit`
-- reads: activities-<queue> ZSET
-- writes: state-<id> HASH: last_seq; events-<id> STREAM, feed STREAM, covered-<id> STRING, counters HASH; else what
--   `commit` writes

local FIRST_EVENT = 11

-- Return a step as the part of a commit.
local function as_commit(part)
  local entity_id, execution_id, epoch, wake, base_seq, worker, release, covered, count = unpack(part, 1, 9)
  local events, running, requests = {}, {}, {}
  for place = FIRST_EVENT, #part do events[#events + 1] = part[place] end
  for number, request in ipairs(covered ~= '' and cmsgpack.unpack(covered) or {}) do
    local packed = cmsgpack.pack(request)
    if number <= count then
      running[#running + 1] = request[1]
      running[#running + 1] = packed
    else
      requests[#requests + 1] = { request[1], request[2], true, packed }
    end
  end
  return {
    entity_id, execution_id, tonumber(epoch), base_seq, tonumber(wake), worker, release, events, running, requests,
    #requests, false, {},
  }
end

local function step(call, part)
  local entity_id, execution_id, epoch, wake, base_seq, _, _, covered, _, queue = unpack(part, 1, 10)
  if call.rows and call.rows[execution_id] then return commits.commit(call, as_commit(part)) end
  local key = call.prefix .. 'state-' .. execution_id
  local fields = redis.call('HMGET', key, 'plain', 'entity_id', 'epoch', 'wake', 'last_seq')
  local holds = fields[1] and fields[2] == entity_id and fields[3] == epoch and (fields[4] or '0') == wake
  if not holds or tonumber(fields[5]) ~= base_seq or (queue ~= '' and activities.wait_in(call, queue)) then
    return commits.commit(call, as_commit(part))
  end
  local last_seq = log.append(call, execution_id, base_seq, part, FIRST_EVENT)
  if covered == '' then
    redis.call('DEL', call.prefix .. 'covered-' .. execution_id)
  else
    redis.call('SET', call.prefix .. 'covered-' .. execution_id, covered)
  end
  redis.call('HSET', key, 'last_seq', digits(last_seq))
  return 1
end

local function step_batch(call, parts)
  return answer_each(call, parts, step)
end
