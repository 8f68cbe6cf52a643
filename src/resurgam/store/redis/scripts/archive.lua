-- Delete everything but the rows of complete executions of an entity, unless one of them has changed; the answer is whether
-- that was done.
-- part: entity id, archive, then for each execution: id and version
-- deletes: what shared/deletion.lua does, but for instances-<id>, state-<id>, schemas-<id>, answer-<id> and its members in
--   entities-<entity id>, runs-<entity id>, created, named-* and by-*
-- writes: state-<id> HASH, archived-* ZSET

local function archive(call, part)
  local rows = {}
  for number = 3, #part, 2 do
    local row = instances.find(call, part[number], part[1])
    if not row or part[number + 1] ~= deletion.version(call, row) then return false end
    if not row.fields.deactivated or row.fields.archived then return false end
    rows[#rows + 1] = row
  end
  for _, row in ipairs(rows) do deletion.archive(call, row, part[2]) end
  return true
end

local function archive_batch(call, parts)
  return answer_each(call, parts, archive)
end
