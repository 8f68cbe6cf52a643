-- Delete all executions of an entity, open or closed, unless they have changed; the answer is whether they were deleted.
-- part: entity id, then for each of its executions, oldest first: id and version
-- deletes: what shared/deletion.lua does

local function remove(call, part)
  local rows = instances.of_entity(call, part[1])
  if #part ~= 1 + 2 * #rows then return false end
  for number, row in ipairs(rows) do
    if part[2 * number] ~= row.id or part[2 * number + 1] ~= deletion.version(call, row) then return false end
  end
  for _, row in ipairs(rows) do deletion.delete(call, row) end
  return true
end

local function remove_batch(call, parts)
  return answer_each(call, parts, remove)
end
