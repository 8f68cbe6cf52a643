-- uses: instances, notices, offers
-- The frame of all verbs that write instances: one part after the other, each saved before the next one begins.

local function answer_each(call, parts, run)
  local answers = {}
  for number, part in ipairs(parts) do
    answers[number] = run(call, part)
    if call.rows then offers.save(call) end
  end
  if call.offered then offers.announce(call) end
  announce_logs(call)
  return answers
end
