-- Lease instances that are ready, whose moment has come, or whose lease has expired, in the order of becoming so.
-- part: worker, queues, limit
-- answer: how many are left, then claims { entity id, execution id, epoch, view, wake, inbox }
-- reads: tried-<id> SET, instances-<id>, schemas-<id> STRING, pending-<id> STREAM, unsent ZSET
-- writes: state-<id> HASH, ready-<queue>, parked-<queue>, timers ZSET, counters HASH; of an expired lease: covered-<id>
--   STRING, activities-<queue> ZSET, activity-<id>-<ref> HASH, work-<id> SET

local PAGE = 100 -- candidates of a list that are looked at together, at least

-- Return candidates of some lists, a page of each after those that were seen, in the order of their unlocks.
local function candidates(call, kind, queues, seen, limit)
  local count = math.max(PAGE, limit)
  local found = {}
  for _, queue in ipairs(queues) do
    local key = call.prefix .. kind .. queue
    local page = redis.call('ZRANGE', key, '-inf', unlocked(call), 'BYSCORE', 'LIMIT', seen[key] or 0, count, 'WITHSCORES')
    for number = 1, #page, 2 do found[#found + 1] = { tonumber(page[number + 1]), page[number], key } end
  end
  table.sort(found, function(a, b) return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2]) end)
  return found
end

-- Return a candidate that the worker may have, or nil and whether it is gone.
local function find_claimable(call, kind, id, worker)
  if kind == 'parked-' and leases.is_tried(call, id, worker) then return nil, false end
  local row = instances.find(call, id)
  if not row then return nil, true end
  local may = leases.is_free(call, row) and not leases.has_tried(call, row, worker)
  return may and row or nil, false
end

-- Lease from the lists of a kind until the limit is reached.
local function lease_from(call, kind, worker, queues, limit, claims)
  local seen = {}
  repeat
    local progress = false
    for _, candidate in ipairs(candidates(call, kind, queues, seen, limit)) do
      if #claims >= limit then break end
      local key = candidate[3]
      local row, gone = find_claimable(call, kind, candidate[2], worker)
      if gone then
        redis.call('ZREM', key, candidate[2]) -- whatever has left it there, it must not be in the way of others
      elseif row then
        local claim = leases.claim(call, row, worker)
        if claim then claims[#claims + 1] = claim end
      else
        seen[key] = (seen[key] or 0) + 1
      end
      progress = true
    end
    offers.save(call) -- before the lists are read again
  until not progress or #claims >= limit
end

local function claim(call, part)
  local worker, queues, limit = part[1], part[2], part[3]
  local more = offers.wake_due(call)
  local claims = {}
  lease_from(call, 'ready-', worker, queues, limit, claims)
  lease_from(call, 'parked-', worker, queues, limit, claims)
  if more then note(call, 'due', call.now) end
  outbox.report(call)
  table.insert(claims, 1, offers.count(call, queues))
  return claims
end

local function claim_batch(call, parts)
  return answer_each(call, parts, claim)
end
