-- uses: executions, inbox, instances, lifecycle, outbox, promises, topics
-- Effects of commits on other instances and on topics. An effect is a list of its kind and what belongs to it:
--   child, birth, entry if it exists then, entry if its id is taken, entity id
--   message, entity id, run id, parent key, promise id, entry, and the answers delivered, missing, ended
--   publish, topic, value
--   reply, execution id, entries
-- In an outbox it stands behind its sender: { partition, execution id, how its children are paused, queue }.
-- keys: answer-<id> STRING, and those of the files that it uses

local effects = {}

-- Start a child, unless it ran for this request before or its id is taken; return the answers for its parent.
local function start_child(call, effect, paused, taken)
  local birth, created, refused = effect[2], effect[3], effect[4]
  local entity_id, run_id, parent_key = birth[2], birth[6], birth[9]
  local first, last = executions.of_chain(call, entity_id, run_id)
  local newest = instances.newest(call, entity_id)
  local open = newest and (taken or not instances.is_closed(newest))
  local child = first
  if not child and open then
    if not parent_key or newest.fields.parent_key ~= parent_key then return { refused } end
    child = newest
  end
  child = child or lifecycle.begin(call, birth, paused)
  local answers = { { created[1], fill(created[2], { execution_id = child.id }), created[3], created[4] } }
  local answer = last and redis.call('GET', call.prefix .. 'answer-' .. last.id)
  if answer then answers[2] = cmsgpack.unpack(answer) end
  return answers
end

-- Deliver a message to another instance; return the answer for its sender.
local function send_message(call, effect, sender)
  local entity_id, run_id, key, promise_id, entry, delivered, missing, ended = unpack(effect, 2, 9)
  if promise_id then
    local row, reason = promises.settle(call, promise_id, entry, sender)
    if row then return { delivered } end
    if reason == 'missing' then return { missing } end
    return { ended }
  end
  local target = instances.newest(call, entity_id)
  if not target then return { missing } end
  local fields = target.fields
  local addressed = (not run_id or run_id == fields.run_id) and (not key or key == fields.parent_key)
  if instances.is_closed(target) or not addressed then return { ended } end
  lifecycle.apply(call, target, entry)
  return { delivered }
end

-- Apply an effect in the partition of its target; return the answers for its sender, whose row is given if it is here.
local function apply(call, effect, paused, sender, taken)
  local kind = effect[1]
  if kind == 'child' then return start_child(call, effect, paused, taken) end
  if kind == 'message' then return send_message(call, effect, sender) end
  if kind == 'publish' then
    publish(call, effect[2], effect[3])
  elseif kind == 'reply' then
    local row = instances.find(call, effect[2])
    local is_kept = row and not row.fields.archived
    for _, entry in ipairs(is_kept and effect[3] or {}) do inbox.put(call, row, entry) end
  end
  return {}
end

-- Send the effects of a commit, given as target partition and effect in turn.
function effects.send(call, row, list, paused, succeeded)
  local children = paused == 'tree' and 'tree' or nil
  local here = tonumber(partition_of(call))
  for number = 1, #list, 2 do
    local target, effect = list[number], list[number + 1]
    if target == here then
      -- The id of an instance that goes on in a successor, begun afterwards, stays taken.
      local taken = succeeded and effect[1] == 'child' and effect[2][2] == row.fields.entity_id
      for _, entry in pairs(apply(call, effect, children, row, taken)) do
        if entry then inbox.put(call, row, entry) end
      end
    else
      local sender = { here, row.id, children or false, row.fields.queue }
      outbox.add(call, target, { sender, effect }, row.fields.queue)
    end
  end
end

-- Apply an effect that comes from the outbox of another partition; the answers go back the same way.
function effects.receive(call, packed)
  local sender, effect = unpack(cmsgpack.unpack(packed))
  local entries = {}
  for _, entry in pairs(apply(call, effect, sender[3] or nil)) do
    if entry then entries[#entries + 1] = entry end
  end
  if #entries > 0 then outbox.add(call, sender[1], { sender, { 'reply', sender[2], entries } }, sender[4]) end
end

-- Begin the next execution of an entity, with its first entries and the unread ones of the execution before.
function effects.begin_successor(call, row, birth, first, moves, paused)
  local successor = lifecycle.begin(call, birth, paused)
  for _, entry in ipairs(first) do lifecycle.hand_on(call, successor, entry) end
  local moving, moved = {}, {}
  for _, type in ipairs(moves) do moving[type] = true end
  for _, entry in ipairs(inbox.since(call, row, 0)) do
    local _, type, _, body, _, overtakes, _, promise_id = unpack(entry[2])
    if moving[type] then
      lifecycle.hand_on(call, successor, { type, body, overtakes == '1', promise_id ~= '' and promise_id })
      moved[#moved + 1] = string.match(entry[1], '^%d+')
    end
  end
  inbox.consume(call, row, moved)
  promises.move(call, row, successor)
end
