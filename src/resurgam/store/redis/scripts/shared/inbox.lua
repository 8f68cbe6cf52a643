-- uses: instances, notices, offers, template
-- Inboxes. An entry is given as { type, body, overtakes, promise id, tree }: body is a template, overtakes says whether a
-- strict commit must have seen it, tree is for pauses only.
-- An entry that wakes nobody is numbered behind the last one that did: wake-1, wake-2 and so on. Its id as a number is the
-- wake counter, plus 2^31 times its own number.
-- keys: pending-<id> STREAM wake-quiet: type, body, overtakes, promise_id

local inbox = {}

local QUIET = 2147483648 -- parts._QUIET

-- Put an entry into an inbox. It raises the wake counter, which is its id, and makes a free instance ready.
function inbox.put(call, row, entry, values)
  local wake = row.fields.wake + 1
  instances.set(row, 'wake', wake)
  redis.call('XADD', call.prefix .. 'pending-' .. row.id, wake .. '-0', 'type', entry[1], 'body', fill(entry[2], values),
    'overtakes', entry[3] and 1 or 0, 'promise_id', entry[4] or '')
  note_inbox(call, row.id, row.fields.owner)
  if not row.fields.leased_until then offers.make_ready(call, row) end
end

-- Put an entry into an inbox that comes with the next one that raises the wake counter.
function inbox.put_quietly(call, row, type, body)
  local quiet = (row.fields.quiet or 0) + 1
  instances.set(row, 'quiet', quiet)
  redis.call('XADD', call.prefix .. 'pending-' .. row.id, row.fields.wake .. '-' .. quiet, 'type', type, 'body', body,
    'overtakes', 0, 'promise_id', '')
end

-- Return the entries since the wake counter had a value, as a stream returns them.
function inbox.since(call, row, wake)
  if row.fields.wake <= wake then return {} end
  return redis.call('XRANGE', call.prefix .. 'pending-' .. row.id, '(' .. wake .. '-0', '+')
end

-- Whether entries since then overtake a strict commit.
function inbox.overtakes(call, row, wake)
  for _, entry in ipairs(inbox.since(call, row, wake)) do
    if entry[2][6] == '1' then return true end
  end
  return false
end

-- Whether the settlement of a promise waits.
function inbox.has_settlement(call, row, promise_id)
  for _, entry in ipairs(inbox.since(call, row, 0)) do
    if entry[2][8] == promise_id then return true end
  end
  return false
end

-- Delete entries by their ids; an inbox without any takes no room.
function inbox.consume(call, row, ids)
  if #ids == 0 then return end
  local key = call.prefix .. 'pending-' .. row.id
  for _, id in ipairs(ids) do redis.call('XDEL', key, id % QUIET .. '-' .. math.floor(id / QUIET)) end
  if redis.call('XLEN', key) == 0 then redis.call('DEL', key) end
end
