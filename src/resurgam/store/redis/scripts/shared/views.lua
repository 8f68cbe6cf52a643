-- uses: instances
-- Executions as an inspector shows them.
-- keys: letters-<execution id> HASH of the dead letters among its activities, ref: reason

local views = {}

-- Return an instance as `instances.view` does, and the dead letters among its activities in the order of their refs.
function views.seen(call, row)
  local flat = redis.call('HGETALL', call.prefix .. 'letters-' .. row.id)
  local letters = {}
  for number = 1, #flat, 2 do letters[#letters + 1] = { tonumber(flat[number]), flat[number + 1] } end
  table.sort(letters, function(one, other) return one[1] < other[1] end)
  for number, letter in ipairs(letters) do letters[number] = letter[2] end
  return { instances.view(call, row), letters }
end
