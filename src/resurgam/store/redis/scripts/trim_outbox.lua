-- Delete what was applied of an outbox, and return what follows.
-- part: target partition, number of the last effect that was applied there, limit
-- answer: numbers and bodies in turn
-- writes: outbox-<target> STREAM n-0: at, body; unsent ZSET

local function trim_outbox(call, part)
  local answer = {}
  for number, entry in ipairs(outbox.trim(call, part[1], part[2], part[3])) do
    answer[2 * number - 1] = tonumber(string.match(entry[1], '^%d+'))
    answer[2 * number] = entry[2][4]
  end
  return answer
end
