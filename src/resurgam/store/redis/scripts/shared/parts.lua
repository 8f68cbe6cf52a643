-- uses: instances, notices, offers
-- The frame of all verbs that write instances: one part after the other, each saved before the next one begins.

local function answer_each(call, parts, run)
  local answers = {}
  for number, part in ipairs(parts) do
    answers[number] = run(call, part)
    instances.save(call)
  end
  offers.announce(call)
  announce_logs(call)
  return answers
end
