-- Rows: the hash state-<execution id> of an instance, read as a whole when it is first needed and written back with its
-- changes after each part. Numbers are numbers; what is absent is nil.
-- keys: state-<id> HASH, entities-<entity id> LIST, by-failure-<type> and dead-instances ZSET

local instances = {}

local NUMBERS = {
  attempt = true, closed_at = true, created_at = true, deactivated = true, deliveries = true, epoch = true,
  last_seq = true, leased_until = true, place = true, plain = true, promised = true, quiet = true, ready = true, tried = true,
  wake = true, wake_at = true,
}
local ZERO = { deliveries = 0, epoch = 0, wake = 0 }
local TERMINAL = { completed = true, failed = true, cancelled = true, terminated = true, continued = true }

local function row_of(id)
  return { id = id, changes = {}, fields = setmetatable({}, { __index = ZERO }) }
end

local function keep(call, row)
  call.rows = call.rows or {}
  call.rows[row.id] = row
  return row
end

-- Return the row of an execution; nil if there is none, or if it belongs to another entity than the one given.
function instances.find(call, id, entity_id)
  local row = call.rows and call.rows[id]
  if not row then
    local flat = redis.call('HGETALL', call.prefix .. 'state-' .. id)
    if #flat == 0 then return nil end
    row = row_of(id)
    for number = 1, #flat, 2 do
      local name, value = flat[number], flat[number + 1]
      row.fields[name] = NUMBERS[name] and tonumber(value) or value
    end
    keep(call, row)
  end
  if entity_id and row.fields.entity_id ~= entity_id then return nil end
  return row
end

-- Return the row of a new execution.
function instances.add(call, id, fields)
  local row = row_of(id)
  row.is_new = true
  for name, value in pairs(fields) do instances.set(row, name, value) end
  return keep(call, row)
end

-- Change a field; nil removes it.
function instances.set(row, name, value)
  if row.fields[name] == value then return end
  row.fields[name] = value
  row.changes[name] = true
end

-- Keep the indexes in step that follow a field.
local function index(call, row)
  local fields = row.fields
  if row.changes.failure then
    local before = redis.call('HGET', call.prefix .. 'state-' .. row.id, 'failure')
    if before then redis.call('ZREM', call.prefix .. 'by-failure-' .. before, row.id) end
    if fields.failure then
      redis.call('ZADD', call.prefix .. 'by-failure-' .. fields.failure, fields.created_at, row.id)
    end
  end
  if row.changes.dead_letter then
    if fields.dead_letter then
      redis.call('ZADD', call.prefix .. 'dead-instances', call.now, row.id)
    else
      redis.call('ZREM', call.prefix .. 'dead-instances', row.id)
    end
  end
end

-- Whether steps may be committed without a look at the rest of the row (step.lua).
local function is_plain(fields)
  return fields.status == 'running' and fields.leased_until and fields.deliveries == 0 and not fields.paused
    and not fields.parked and not fields.last_failure and not fields.wake_at
end

-- Write back what has changed.
function instances.save(call)
  for id, row in pairs(call.rows or {}) do
    if next(row.changes) then
      instances.set(row, 'plain', is_plain(row.fields) and 1 or nil)
      index(call, row)
      local set, gone = {}, {}
      for name in pairs(row.changes) do
        local value = rawget(row.fields, name)
        if value == nil or value == ZERO[name] then
          if not row.is_new then gone[#gone + 1] = name end
        else
          set[#set + 1] = name
          set[#set + 1] = value
        end
      end
      local key = call.prefix .. 'state-' .. id
      if #set > 0 then redis.call('HSET', key, unpack(set)) end
      if #gone > 0 then redis.call('HDEL', key, unpack(gone)) end
      row.changes, row.is_new = {}, nil
    end
  end
end

-- Forget a row whose execution is deleted.
function instances.remove(call, row)
  redis.call('DEL', call.prefix .. 'state-' .. row.id)
  call.rows[row.id] = nil
end

-- Return the newest execution of an entity.
function instances.newest(call, entity_id)
  local id = redis.call('LINDEX', call.prefix .. 'entities-' .. entity_id, -1)
  return id and instances.find(call, id)
end

-- Return all executions of an entity, oldest first.
function instances.of_entity(call, entity_id)
  local rows = {}
  for number, id in ipairs(redis.call('LRANGE', call.prefix .. 'entities-' .. entity_id, 0, -1)) do
    rows[number] = instances.find(call, id)
  end
  return rows
end

function instances.is_closed(row)
  return TERMINAL[row.fields.status] or false
end

-- Return the status that others see: a pause hides it.
function instances.shown_status(row)
  return row.fields.paused and 'paused' or row.fields.status
end

-- Whether the code of an instance may run: that of a scheduled one, from its moment on.
function instances.may_begin(call, row)
  local wake_at = row.fields.wake_at
  return row.fields.status ~= 'scheduled' or (wake_at ~= nil and wake_at <= call.now)
end

-- Whether an instance is listed as parked: one that diverged, unless it is a dead letter.
function instances.is_parked(row)
  return row.fields.status == 'diverged' and not row.fields.dead_letter
end

local SHOWN = { 'status', 'paused', 'closed_at', 'deactivated', 'last_seq', 'wake_at', 'parked', 'dead_letter', 'failure', 'tags', 'archived' }

-- Return an instance as `parts.instance_of` decodes it: the JSON, the fields that overlay it, the schemas of its signals.
function instances.view(call, row)
  local view = { redis.call('GET', call.prefix .. 'instances-' .. row.id) }
  for _, name in ipairs(SHOWN) do view[#view + 1] = row.fields[name] or false end
  view[#view + 1] = redis.call('GET', call.prefix .. 'schemas-' .. row.id)
  return view
end
