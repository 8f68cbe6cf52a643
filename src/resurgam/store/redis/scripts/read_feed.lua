-- Return events of the feed after a position. The answer is the position that was reached, that of the newest event, and
-- for each event position, entity id, execution id, kind, seq, type, body.
-- part: position, how many events at most, how many to look at, entity id or nil, types (empty: all of them)
-- reads only: feed STREAM position-0: execution_id, seq; counters HASH: feed; events-<id> STREAM; forgotten-<id> HASH;
--   state-<id> HASH: entity_id, kind

local function position_of(reference)
  return tonumber(string.match(reference[1], '^%d+'))
end

local function read_feed(call, part)
  local after, limit, window, entity_id, types = unpack(part, 1, 5)
  local wanted = {}
  for _, name in ipairs(types) do wanted[name] = true end
  local newest = tonumber(redis.call('HGET', call.prefix .. 'counters', 'feed') or 0)
  local references =
    redis.call('XRANGE', call.prefix .. 'feed', string.format('(%.0f-0', after), '+', 'COUNT', window)
  local answer = { #references < window and newest or position_of(references[window]), newest }
  for _, reference in ipairs(references) do
    local execution_id, seq = reference[2][2], tonumber(reference[2][4])
    local kind_of_event, body = log.entry(call, execution_id, seq)
    if body and (#types == 0 or wanted[kind_of_event]) then
      local fields = redis.call('HMGET', call.prefix .. 'state-' .. execution_id, 'entity_id', 'kind')
      if not entity_id or fields[1] == entity_id then
        local position = position_of(reference)
        answer[#answer + 1] = { position, fields[1], execution_id, fields[2], seq, kind_of_event, body }
        if #answer == limit + 2 then
          answer[1] = position
          break
        end
      end
    end
  end
  return answer
end
