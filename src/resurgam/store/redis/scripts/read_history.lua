-- Return entries of a log, a bounded number at a time, in the order of the walk: forwards or backwards from a seq.
-- The answer is how many entries replay no longer reads, the seq from which to go on or false, and seq and body in turn.
-- A reader whose first number has changed meanwhile has read two states of the log; it is -1 if there is none.
-- part: entity id, execution id, seq from which on or nil for the last one, whether backwards, whether forgotten ones too,
--   how many at most
-- reads only: state-<id> HASH, events-<id> STREAM seq-0: type, body, reference;
--   forgotten-<id> HASH seq: MessagePack of location, type, body, reference

local function seq_of(entry)
  return tonumber(string.match(entry[1], '^%d+'))
end

-- Add the entries that replay reads, and return the seq from which to go on.
local function add_active(answer, key, from, backwards, limit)
  local entries = backwards and redis.call('XREVRANGE', key, from .. '-0', '-', 'COUNT', limit)
    or redis.call('XRANGE', key, from .. '-0', '+', 'COUNT', limit)
  for _, entry in ipairs(entries) do
    answer[#answer + 1] = seq_of(entry)
    answer[#answer + 1] = entry[2][4]
  end
  return #entries == limit and seq_of(entries[limit]) + (backwards and -1 or 1)
end

-- Add all entries of a range that are kept, and return the seq behind it.
local function add_kept(answer, call, id, low, high, backwards)
  local bodies = {}
  for _, entry in ipairs(redis.call('XRANGE', call.prefix .. 'events-' .. id, low .. '-0', high .. '-0')) do
    bodies[seq_of(entry)] = entry[2][4]
  end
  for number = 0, high - low do
    local seq = backwards and high - number or low + number
    local packed = not bodies[seq] and redis.call('HGET', call.prefix .. 'forgotten-' .. id, seq)
    local body = packed and cmsgpack.unpack(packed)[3] or bodies[seq]
    if body then
      answer[#answer + 1] = seq
      answer[#answer + 1] = body
    end
  end
  return backwards and low - 1 or high + 1
end

local function read_history(call, part)
  local entity_id, id, from, backwards, forgotten, limit = unpack(part, 1, 6)
  local row = instances.find(call, id, entity_id)
  if not row or row.fields.archived then return { -1, false } end
  local key, last_seq = call.prefix .. 'events-' .. id, row.fields.last_seq
  local answer = { last_seq - redis.call('XLEN', key), false }
  from = from or (backwards and last_seq or 1)
  local next_seq
  if not forgotten then
    next_seq = add_active(answer, key, from, backwards, limit)
  elseif backwards then
    next_seq = add_kept(answer, call, id, math.max(1, from - limit + 1), from, true)
  else
    next_seq = add_kept(answer, call, id, from, math.min(last_seq, from + limit - 1), false)
  end
  if next_seq and next_seq >= 1 and next_seq <= last_seq then answer[2] = next_seq end
  return answer
end
