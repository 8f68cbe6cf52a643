-- Return the cursor after all messages on a topic, and those after a cursor; with nil only the cursor.
-- part: topic, number of the last message that is known, or nil; how many messages at most
-- reads only: topic-<name> STREAM n-0: at, body; counters HASH: topics, the number of the newest message of all topics

local function read_topic(call, part)
  local topic, after, limit = part[1], part[2], part[3]
  local newest = tonumber(redis.call('HGET', call.prefix .. 'counters', 'topics') or 0)
  if not after then return { newest } end
  local found = redis.call('XRANGE', call.prefix .. 'topic-' .. topic, '(' .. after .. '-0', '+', 'COUNT', limit)
  if #found == limit then newest = tonumber(string.match(found[limit][1], '^%d+')) end
  local answer = { newest }
  for number, message in ipairs(found) do answer[number + 1] = message[2][4] end
  return answer
end
