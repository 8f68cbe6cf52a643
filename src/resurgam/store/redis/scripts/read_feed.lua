-- Return events of the feed after a position. The answer is the position that was reached, that of the newest event, and
-- for each event position, entity id, execution id, kind, seq, type, body.
-- part: position, how many events at most, how many to look at, entity id or nil, types (empty: all of them)
-- reads only: feed STREAM position-count: execution_id, seq (see shared/log.lua); counters HASH: feed; events-<id> STREAM; forgotten-<id> HASH;
--   state-<id> HASH: entity_id, kind

-- Return the position of the last event that a reference stands for, its seq, and how many there are.
local function last_of(reference)
  local position, count = string.match(reference[1], '^(%d+)-(%d+)$')
  return tonumber(position), tonumber(reference[2][4]), tonumber(count)
end

local function read_feed(call, part)
  local after, limit, window, entity_id, types = unpack(part, 1, 5)
  local wanted = {}
  for _, name in ipairs(types) do wanted[name] = true end
  local newest = tonumber(redis.call('HGET', call.prefix .. 'counters', 'feed') or 0)
  local references =
    redis.call('XRANGE', call.prefix .. 'feed', string.format('%.0f-0', after + 1), '+', 'COUNT', window)
  local answer, looked_at = { newest, newest }, 0
  for _, reference in ipairs(references) do
    local execution_id = reference[2][2]
    local fields = redis.call('HMGET', call.prefix .. 'state-' .. execution_id, 'entity_id', 'kind')
    local last, last_seq, count = last_of(reference)
    local fits = not entity_id or fields[1] == entity_id
    for position = math.max(after + 1, last - count + 1), last do
      local seq = last_seq - (last - position)
      local type, body
      if fits then type, body = log.entry(call, execution_id, seq) end
      if type and (#types == 0 or wanted[type]) then
        answer[#answer + 1] = { position, fields[1], execution_id, fields[2], seq, type, body }
      end
      looked_at = looked_at + 1
      if #answer == limit + 2 or looked_at == window then
        answer[1] = position
        return answer
      end
    end
  end
  return answer
end
