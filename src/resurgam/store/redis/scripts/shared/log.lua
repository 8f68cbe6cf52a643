-- uses: notices, order, unlock
-- Logs, what is forgotten of them, and the feed, which refers to every event of all of them.
-- keys: events-<id> STREAM seq-0: type, body, reference; forgotten-<id> HASH seq: MessagePack of location, type, body,
--   reference; feed STREAM position-count: execution_id, seq; counters HASH: feed
--
-- A reference of the feed stands for all events that were appended together. Its id is the position of the last of them
-- and their number, its seq is that of the last one.

local log = {}

-- Append events behind the entry last_seq, given as type and body in turn, from the place first on if they are not all of a
-- list; return the new last_seq.
function log.append(call, execution_id, last_seq, events, first)
  first = first or 1
  local count = (#events - first + 1) / 2
  if count == 0 then return last_seq end
  local key = call.prefix .. 'events-' .. execution_id
  local position = redis.call('HINCRBY', call.prefix .. 'counters', 'feed', digits(count))
  local reference = string.format('%d-%d', position, count)
  for place = first, #events, 2 do
    last_seq = last_seq + 1
    redis.call('XADD', key, string.format('%d-0', last_seq), 'type', events[place], 'body', events[place + 1],
      'reference', reference)
  end
  redis.call('XADD', call.prefix .. 'feed', reference, 'execution_id', execution_id, 'seq', digits(last_seq))
  note_log(call, execution_id)
  return last_seq
end

local SHORT = 30 -- entries of a log that is worth a copy

-- Give a short log the room that it needs and no more. A stream begins with four kilobytes, most of what an instance takes
-- that sleeps or is closed; a copy of it has no room to spare. The key of the copy is gone when the function ends.
function log.compact(call, execution_id, last_seq)
  if last_seq > SHORT then return end
  local key, copy = call.prefix .. 'events-' .. execution_id, call.prefix .. 'copy'
  if redis.call('COPY', key, copy, 'REPLACE') == 1 then redis.call('RENAME', copy, key) end
end

-- Return type, body and reference of an entry, forgotten or not; nil if it is not there.
function log.entry(call, execution_id, seq)
  local id = seq .. '-0'
  local found = redis.call('XRANGE', call.prefix .. 'events-' .. execution_id, id, id)
  if found[1] then return found[1][2][2], found[1][2][4], found[1][2][6] end
  local forgotten = redis.call('HGET', call.prefix .. 'forgotten-' .. execution_id, seq)
  if not forgotten then return nil end
  return select(2, unpack(cmsgpack.unpack(forgotten)))
end

-- Return the moment of an entry, 0 if it is not there. The encoder writes it behind the type and the seq.
function log.moment(call, execution_id, seq)
  local _, body = log.entry(call, execution_id, seq)
  return body and tonumber(string.match(body, '^{"type":"[%w_]+","seq":%d+,"at":(%d+)')) or 0
end

-- Keep entries, given as seq and location in turn, where only tools look.
function log.forget(call, execution_id, marks)
  local key = call.prefix .. 'forgotten-' .. execution_id
  for number = 1, #marks, 2 do
    local seq, location = marks[number], marks[number + 1]
    local type, body, reference = log.entry(call, execution_id, seq)
    if type then
      redis.call('HSET', key, seq, cmsgpack.pack({ location, type, body, reference }))
      redis.call('XDEL', call.prefix .. 'events-' .. execution_id, seq .. '-0')
    end
  end
end

-- Delete references of the feed if none of their events is left.
local function drop_references(call, execution_id, references)
  local feed = call.prefix .. 'feed'
  for reference in pairs(references) do
    local last = tonumber(redis.call('XRANGE', feed, reference, reference)[1][2][4])
    local count = tonumber(string.match(reference, '-(%d+)$'))
    local left = false
    for seq = last - count + 1, last do left = left or log.entry(call, execution_id, seq) ~= nil end
    if not left then redis.call('XDEL', feed, reference) end
  end
end

local function is_within(location, spans)
  for number = 1, #spans, 2 do
    if not precedes(location, spans[number]) and precedes(location, spans[number + 1]) then return true end
  end
  return false
end

local READ_AT_ONCE = 500 -- entries of a log, so that they are never in memory all together

-- Call visit with the seq of each forgotten entry, its location and its reference.
local function each_forgotten(call, execution_id, visit)
  local key, cursor = call.prefix .. 'forgotten-' .. execution_id, '0'
  repeat
    local page = redis.call('HSCAN', key, cursor, 'COUNT', READ_AT_ONCE)
    cursor = page[1]
    for number = 1, #page[2], 2 do
      local location, _, _, reference = unpack(cmsgpack.unpack(page[2][number + 1]))
      visit(page[2][number], location, reference)
    end
  until cursor == '0'
end

-- Delete what is forgotten within spans, given as the keys of their first locations and of the ones behind them in turn.
function log.drop(call, execution_id, spans)
  local key, references = call.prefix .. 'forgotten-' .. execution_id, {}
  each_forgotten(call, execution_id, function(seq, location, reference)
    if is_within(location, spans) then
      redis.call('HDEL', key, seq)
      references[reference] = true
    end
  end)
  drop_references(call, execution_id, references)
end

-- Delete a log with its references in the feed.
function log.purge(call, execution_id)
  local key, feed = call.prefix .. 'events-' .. execution_id, call.prefix .. 'feed'
  local from, last = '-', nil
  repeat
    local entries = redis.call('XRANGE', key, from, '+', 'COUNT', READ_AT_ONCE)
    for _, entry in ipairs(entries) do
      local reference = entry[2][6] -- events that were appended together share one
      if reference ~= last then redis.call('XDEL', feed, reference) end
      last = reference
    end
    if #entries > 0 then from = '(' .. entries[#entries][1] end
  until #entries < READ_AT_ONCE
  each_forgotten(call, execution_id, function(_, _, reference) redis.call('XDEL', feed, reference) end)
  redis.call('DEL', key, call.prefix .. 'forgotten-' .. execution_id)
end
