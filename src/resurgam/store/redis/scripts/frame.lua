-- The frame of every function: one declared key, the prefix of a partition, and four arguments:
-- the moment in milliseconds (empty: the server's own time), the lease in milliseconds, the owner, the parts as MessagePack.
-- A call that may lease something has a fifth one: its number, by which it can be taken back if the answer is lost.
-- It returns the notices of the whole call, as kind and value in turn, and one answer per part.

local function begin(keys, args)
  local now = tonumber(args[1])
  if not now then
    local time = redis.call('TIME')
    now = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  return { prefix = keys[1], now = now, lease = tonumber(args[2]), owner = args[3], number = args[5], notices = {} }
end

-- Tell the caller about a change that its own waiters may wait for.
local function note(call, kind, value)
  local notices = call.notices
  notices[#notices + 1] = kind
  notices[#notices + 1] = value
end

-- Register a function that is given all parts at once and returns their answers. One that reads only cannot write.
local function register_batch(name, run, reads_only)
  redis.register_function({
    function_name = name,
    callback = function(keys, args)
      local call = begin(keys, args)
      local answers = run(call, cmsgpack.unpack(args[4]))
      return { call.notices, answers }
    end,
    flags = reads_only and { 'no-writes' } or {},
  })
end

-- Register a function that is given one part after the other.
local function register(name, run, reads_only)
  register_batch(name, function(call, parts)
    local answers = {}
    for number = 1, #parts do
      local answer = run(call, parts[number])
      if answer == nil then answer = false end -- a nil would end the array
      answers[number] = answer
    end
    return answers
  end, reads_only)
end
