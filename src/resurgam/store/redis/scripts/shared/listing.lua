-- uses: instances
-- Indexes of all executions, each a ZSET scored by the moment of creation, and of complete ones by the moment of their end.
-- keys: created, ended, by-kind-<kind>, by-status-<status>, by-name-<name>, by-tree-<tree id>, by-parent-<entity id>, by-tag-<name>=<value>,
--   by-failure-<type>, dead-instances

local listing = {}

local MOST = 'workflow' -- the kind of most executions, which has no index

local function names_of(row)
  local fields = row.fields
  local names = { 'created', 'by-name-' .. fields.name, 'by-tree-' .. fields.tree_id }
  if fields.kind ~= MOST then names[#names + 1] = 'by-kind-' .. fields.kind end
  if fields.parent then names[#names + 1] = 'by-parent-' .. fields.parent end
  local tags = fields.tags and cmsgpack.unpack(fields.tags) or {}
  for number = 1, #tags, 2 do names[#names + 1] = 'by-tag-' .. tags[number] .. '=' .. tags[number + 1] end
  return names
end

function listing.add(call, row)
  for _, name in ipairs(names_of(row)) do redis.call('ZADD', call.prefix .. name, row.fields.created_at, row.id) end
  listing.show(call, row, nil)
end

-- List an instance under the status that is shown, instead of the one that was.
function listing.show(call, row, before)
  local status = instances.shown_status(row)
  if status == before then return end
  if before then redis.call('ZREM', call.prefix .. 'by-status-' .. before, row.id) end
  redis.call('ZADD', call.prefix .. 'by-status-' .. status, row.fields.created_at, row.id)
end

-- List an execution that is closed and complete, and no other.
function listing.note_end(call, row)
  if row.fields.deactivated and row.fields.closed_at then
    redis.call('ZADD', call.prefix .. 'ended', row.fields.closed_at, row.id)
  else
    redis.call('ZREM', call.prefix .. 'ended', row.id)
  end
end

function listing.remove(call, row)
  for _, name in ipairs(names_of(row)) do redis.call('ZREM', call.prefix .. name, row.id) end
  redis.call('ZREM', call.prefix .. 'by-status-' .. instances.shown_status(row), row.id)
  redis.call('ZREM', call.prefix .. 'ended', row.id)
  redis.call('ZREM', call.prefix .. 'dead-instances', row.id)
  if row.fields.failure then redis.call('ZREM', call.prefix .. 'by-failure-' .. row.fields.failure, row.id) end
end
