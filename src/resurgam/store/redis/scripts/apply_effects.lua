-- Apply effects from the outbox of another partition, each once and in order: only those behind the mark count. They are the
-- first ones of that outbox, which keeps all that were not applied, so that none is missing between them and the mark.
-- part: source partition, then numbers and bodies in turn
-- answer: the mark, which is the number of the last effect applied
-- writes: marks HASH; for children what `create` writes, for messages what `deliver` writes, for publications
--   topic-<name> STREAM, for replies pending-<id> STREAM and state-<id> HASH; for answers outbox-<target> STREAM, unsent ZSET

local function apply_effects(call, part)
  local key, source = call.prefix .. 'marks', part[1]
  local before = tonumber(redis.call('HGET', key, source) or 0)
  local mark = before
  for number = 2, #part, 2 do
    if part[number] > mark then
      effects.receive(call, part[number + 1])
      mark = part[number]
    end
  end
  if mark ~= before then redis.call('HSET', key, source, digits(mark)) end
  return mark
end

local function apply_effects_batch(call, parts)
  return answer_each(call, parts, apply_effects)
end
