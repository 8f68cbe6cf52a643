-- Take in executions of one entity, all or none, as the caller has planned it; answer whether the plan still holds. It does
-- not if the entity has other executions by now, or others of them are open, or another execution holds one of the promises.
-- part: entity id; its executions as id and whether it is closed, in turn; promises as id and holder or '', in turn;
--   the order of all executions; ids of archived executions that are restored by copies; copies, each as
--   id, instance as JSON, the fields of its state as name and value in turn, schemas or nil, answer or nil,
--   entries of the log as seq, type, body in turn, forgotten ones as seq and location in turn, entries of the inbox,
--   activities as request and pending, promises as id, name, schema and settled, whether it must be claimed
-- writes: entities-<entity id> LIST, runs-<entity id> ZSET and everything that belongs to an execution (see keys.py), feed STREAM,
--   ready-<queue>, parked-<queue>, timers, activities-<queue>, created, ended-..., named-..., by-... and dead-... ZSET, queues HASH,
--   counters HASH

local function has_executions(call, entity_id, expected)
  local ids = redis.call('LRANGE', call.prefix .. 'entities-' .. entity_id, 0, -1)
  if 2 * #ids ~= #expected then return false end
  for number, id in ipairs(ids) do
    local row = instances.find(call, id)
    if id ~= expected[2 * number - 1] or instances.is_closed(row) ~= expected[2 * number] then return false end
  end
  return true
end

local function has_holders(call, expected)
  for number = 1, #expected, 2 do
    local holder = redis.call('HGET', call.prefix .. 'promise-' .. expected[number], 'execution_id') or ''
    if holder ~= expected[number + 1] then return false end
  end
  return true
end

local function are_new(call, copies, restored)
  local known = {}
  for _, row in ipairs(restored) do known[row.id] = true end
  for _, copy in ipairs(copies) do
    if not known[copy[1]] and instances.find(call, copy[1]) then return false end
  end
  return true
end

-- Return the rows of archived executions; nil if one of them is gone or has a log again.
local function find_archived(call, ids)
  local rows = {}
  for number, id in ipairs(ids) do
    local row = instances.find(call, id)
    if not row or not row.fields.archived then return nil end
    rows[number] = row
  end
  return rows
end

-- Append the entries of a log, those without gaps between them together.
local function append(call, id, entries)
  local events = {}
  for number = 1, #entries, 3 do
    local seq = entries[number]
    events[#events + 1] = entries[number + 1]
    events[#events + 1] = entries[number + 2]
    if entries[number + 3] ~= seq + 1 then
      log.append(call, id, seq - #events / 2, events)
      events = {}
    end
  end
end

local function take_in(call, copy)
  local id, instance, flat, schemas, answer, entries, forgotten, unread, pending, held, ready = unpack(copy, 1, 11)
  local fields = {}
  for number = 1, #flat, 2 do fields[flat[number]] = flat[number + 1] end
  redis.call('SET', call.prefix .. 'instances-' .. id, instance)
  if schemas then redis.call('SET', call.prefix .. 'schemas-' .. id, schemas) end
  if answer then redis.call('SET', call.prefix .. 'answer-' .. id, answer) end
  local row = instances.add(call, id, fields)
  queues.enter(call, fields.queue)
  append(call, id, entries)
  log.forget(call, id, forgotten)
  for _, promise in ipairs(held) do promises.keep(call, row, unpack(promise, 1, 4)) end
  for _, entry in ipairs(unread) do inbox.put(call, row, entry) end
  for _, one in ipairs(pending) do activities.add_pending(call, row, one[1], one[2]) end
  listing.add(call, row)
  listing.note_end(call, row, {})
  offers.free(call, row, ready)
end

local function adopt(call, part)
  local entity_id, known, holders, order, ids, copies = unpack(part, 1, 6)
  local restored = find_archived(call, ids)
  if not restored or not are_new(call, copies, restored) then return 0 end
  if not has_executions(call, entity_id, known) or not has_holders(call, holders) then return 0 end
  for _, row in ipairs(restored) do deletion.delete(call, row) end
  for _, copy in ipairs(copies) do take_in(call, copy) end
  executions.set_order(call, entity_id, order)
  return 1
end

local function adopt_batch(call, parts)
  return answer_each(call, parts, adopt)
end
