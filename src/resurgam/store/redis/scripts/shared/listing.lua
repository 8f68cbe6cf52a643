-- uses: instances
-- Indexes of all executions, each a ZSET scored by the moment of creation, and of complete ones by the moment of their end.
-- keys: created, by-kind-<kind>, by-status-<status>, by-name-<name>, named-<status>-<name>, by-tree-<tree id>,
--   by-parent-<entity id>, by-tag-<name>=<value>, by-failure-<type>, dead-instances; ended-<status>, ended-named-<status>-<name> and, if their logs
--   are in an archive, archived-<status>, archived-named-<status>-<name>

local listing = {}

local MOST = 'workflow' -- the kind of most executions, which has no index

-- Return the indexes of tags, which are flat names and values as MessagePack, or nil.
local function names_of_tags(packed)
  local names, tags = {}, packed and cmsgpack.unpack(packed) or {}
  for number = 1, #tags, 2 do names[#names + 1] = 'by-tag-' .. tags[number] .. '=' .. tags[number + 1] end
  return names
end

local function names_of(row)
  local fields = row.fields
  local names = { 'created', 'by-name-' .. fields.name, 'by-tree-' .. fields.tree_id }
  if fields.kind ~= MOST then names[#names + 1] = 'by-kind-' .. fields.kind end
  if fields.parent then names[#names + 1] = 'by-parent-' .. fields.parent end
  for _, name in ipairs(names_of_tags(fields.tags)) do names[#names + 1] = name end
  return names
end

local function names_by_status(row, status)
  return { 'by-status-' .. status, 'named-' .. status .. '-' .. row.fields.name }
end

local function enter(call, row, names, moment)
  for _, name in ipairs(names) do redis.call('ZADD', call.prefix .. name, moment, row.id) end
end

local function leave(call, row, names)
  for _, name in ipairs(names) do redis.call('ZREM', call.prefix .. name, row.id) end
end

function listing.add(call, row)
  enter(call, row, names_of(row), row.fields.created_at)
  listing.show(call, row, nil)
end

-- List an instance under the status that is shown, instead of the one that was.
function listing.show(call, row, before)
  local status = instances.shown_status(row)
  if status == before then return end
  if before then leave(call, row, names_by_status(row, before)) end
  enter(call, row, names_by_status(row, status), row.fields.created_at)
end

-- Give an instance other tags, and list it by them instead of those before.
function listing.retag(call, row, tags)
  leave(call, row, names_of_tags(row.fields.tags))
  enter(call, row, names_of_tags(tags), row.fields.created_at)
  instances.set(row, 'tags', tags)
end

-- Return the lists in which an execution stands because it is complete; none if it is not.
function listing.end_of(row)
  local fields = row.fields
  if not fields.deactivated or not fields.closed_at then return {} end
  local kind = fields.archived and 'archived-' or 'ended-'
  return { kind .. fields.status, kind .. 'named-' .. fields.status .. '-' .. fields.name }
end

-- List an execution that is closed and complete, and no other; before is what `end_of` returned when it was listed last.
function listing.note_end(call, row, before)
  local names = listing.end_of(row)
  if names[1] == before[1] then return end
  leave(call, row, before)
  enter(call, row, names, row.fields.closed_at)
end

function listing.remove(call, row)
  leave(call, row, names_of(row))
  leave(call, row, names_by_status(row, instances.shown_status(row)))
  leave(call, row, listing.end_of(row))
  redis.call('ZREM', call.prefix .. 'dead-instances', row.id)
  if row.fields.failure then redis.call('ZREM', call.prefix .. 'by-failure-' .. row.fields.failure, row.id) end
end
