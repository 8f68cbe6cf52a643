-- Return the open activities of an execution, its inbox and its lease, at one moment; false if there is no such execution.
-- part: entity id, execution id
-- reads only: state-<id> HASH, pending-<id> STREAM, work-<id> SET, activity-<id>-<ref> HASH, covered-<id> STRING,
--   events-<id> STREAM, forgotten-<id> HASH

local function open_work(call, part)
  local row = instances.find(call, part[2], part[1])
  if not row then return false end
  local fields = row.fields
  return {
    fields.worker or false, fields.leased_until or false, fields.deliveries,
    contents.activities(call, row), contents.inbox(call, row),
  }
end
