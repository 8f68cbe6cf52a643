-- uses: activities, instances, log
-- What an execution holds beside its log, as an inspector and a copy show it.
-- keys: pending-<id> STREAM, work-<id> SET, activity-<id>-<ref> HASH, covered-<id> STRING

local contents = {}

-- Return the bodies of the inbox, in order.
function contents.inbox(call, row)
  local bodies = {}
  for number, entry in ipairs(redis.call('XRANGE', call.prefix .. 'pending-' .. row.id, '-', '+')) do
    bodies[number] = entry[2][4]
  end
  return bodies
end

-- Return the open activities in the order of their refs, those that the lease covers among them: each as ref, request,
-- visible_at, attempt, deliveries, dead_letter, details, heartbeat_at, worker, leased_until.
function contents.activities(call, row)
  local found, known = {}, {}
  for number, activity in ipairs(activities.of_execution(call, row.id)) do
    known[activity.ref] = true
    found[number] = {
      activity.ref, activity.request, activity.visible_at, activity.attempt, activity.deliveries,
      activity.dead_letter or false, activity.details or false, activity.heartbeat_at or false,
      activity.worker or false, activity.leased_until or false,
    }
  end
  for _, request in ipairs(activities.covered(call, row)) do
    local ref = request[1]
    if not known[ref] then
      local fields = row.fields
      found[#found + 1] = {
        ref, request[3], log.moment(call, row.id, ref), 1, 1, false, false, false, fields.worker, fields.leased_until,
      }
    end
  end
  table.sort(found, function(one, other) return one[1] < other[1] end)
  return found
end
