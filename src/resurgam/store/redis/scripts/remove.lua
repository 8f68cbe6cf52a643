-- Delete executions of an entity, open or closed, unless one of them has changed; the answer is whether they were deleted.
-- part: entity id, then for each execution: id and version
-- deletes: what shared/deletion.lua does

local function remove(call, part)
  local rows = {}
  for number = 2, #part, 2 do
    local row = instances.find(call, part[number], part[1])
    if not row or part[number + 1] ~= deletion.version(call, row) then return false end
    rows[#rows + 1] = row
  end
  for _, row in ipairs(rows) do deletion.delete(call, row) end
  return true
end

local function remove_batch(call, parts)
  return answer_each(call, parts, remove)
end
