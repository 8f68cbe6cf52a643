-- The frame of every function: one declared key, the prefix of a partition, and four arguments:
-- the moment in milliseconds (empty: the server's own time), the lease in milliseconds, the owner, the parts as MessagePack.
-- A call that may lease something has a fifth one: its number, by which it can be taken back if the answer is lost.
-- It returns the notices of the whole call, as kind and value in turn, and one answer per part; or 1, if there are no notices
-- and each answer is 1, as for most calls.

-- The moment of a call is that of the first question for it: a step has none.
local CALL = {
  __index = function(call, name)
    if name ~= 'now' then return nil end
    local time = redis.call('TIME')
    call.now = time[1] * 1000 + math.floor(time[2] / 1000)
    return call.now
  end,
}

local function begin(keys, args)
  local call = {
    prefix = keys[1], now = tonumber(args[1]), lease = tonumber(args[2]), owner = args[3], number = args[5], notices = {},
  }
  return setmetatable(call, CALL)
end

-- Tell the caller about a change that its own waiters may wait for.
local function note(call, kind, value)
  local notices = call.notices
  notices[#notices + 1] = kind
  notices[#notices + 1] = value
end

-- Return the reply of a call.
local function reply(call, parts, answers)
  local short = #call.notices == 0 and #parts > 0
  for number = 1, #parts do short = short and answers[number] == 1 end
  return short and 1 or { call.notices, answers }
end

-- Register a function that is given all parts at once and returns their answers. A flag tells the server what it does.
local function register_batch(name, run, flag)
  redis.register_function({
    function_name = name,
    callback = function(keys, args)
      local call = begin(keys, args)
      local parts = cmsgpack.unpack(args[4])
      return reply(call, parts, run(call, parts))
    end,
    flags = { flag },
  })
end

-- Register a function that is given one part after the other.
local function register(name, run, flag)
  register_batch(name, function(call, parts)
    local answers = {}
    for number = 1, #parts do
      local answer = run(call, parts[number])
      if answer == nil then answer = false end -- a nil would end the array
      answers[number] = answer
    end
    return answers
  end, flag)
end
