-- Build the place in which scripts run. Called once for each Lua state, with the limits; returns the functions by
-- which scripts are compiled and run, and values are told apart.
--
-- Nothing leads out of it: no input or output, no loading of code, no metatables, no coroutines (they would have hooks of
-- their own) and no pcall (it would catch the error of a limit). Values are copied in and out, so no object of Python is
-- ever inside.
local max_steps, max_seconds, every, max_pattern_work = ...

local sethook, clock, error, type, setmetatable, getmetatable, load, next, pairs =
  debug.sethook, os.clock, error, type, setmetatable, getmetatable, load, next, pairs

local ARRAY = { __metatable = false } -- tells an empty array from an empty object
local NULL = {} -- null inside an array, where nil would be a hole

-- The hook sees every instruction of Lua, but not what a function of C does meanwhile. Those that are left take time in
-- proportion to their argument, whose size the memory limit bounds; except patterns, which can take time without bound.
local count_repeats = string.gsub

local function bound_pattern_work(name)
  local original = string[name]
  string[name] = function(subject, pattern, ...)
    if name == 'find' then
      local _, plain = ...
      if plain then return original(subject, pattern, ...) end
    end
    local _, repeats = count_repeats(tostring(pattern), '[%*%+%-%?]', '')
    if (#tostring(subject) + 1) ^ (repeats + 1) > max_pattern_work then
      error('the pattern ' .. tostring(pattern) .. ' may take too long on a text of this length', 2)
    end
    return original(subject, pattern, ...)
  end
end

for _, name in ipairs({ 'find', 'match', 'gmatch', 'gsub' }) do bound_pattern_work(name) end
string.dump, string.pack, string.unpack, string.packsize = nil, nil, nil, nil

local function copy(library)
  local copied = {}
  for name, value in pairs(library) do copied[name] = value end
  return copied
end

local function environment()
  local math = copy(math)
  math.random, math.randomseed = nil, nil -- a script that is run again must give the same
  return {
    assert = assert, error = error, ipairs = ipairs, next = next, null = NULL, pairs = pairs, select = select,
    tonumber = tonumber, tostring = tostring, type = type, math = math, string = copy(string), table = copy(table),
    utf8 = copy(utf8),
  }
end

local function compile(text, name)
  return load(text, name, 't', {})
end

local function run(text, name, ...)
  local chunk, problem = load(text, name, 't', environment())
  if not chunk then error(problem, 0) end
  local steps, begun = 0, clock()
  sethook(function()
    steps = steps + every
    if steps > max_steps then error('the script exceeded ' .. max_steps .. ' steps', 0) end
    if clock() - begun > max_seconds then error('the script exceeded ' .. max_seconds .. ' s', 0) end
  end, '', every)
  return chunk(...)
end

local function as_array(value)
  return setmetatable(value, ARRAY)
end

local function is_array(value)
  return getmetatable(value) == false
end

local function is_null(value)
  return value == NULL
end

-- Take away what leads out, also from functions that run before any script.
for _, name in ipairs({
  'collectgarbage', 'coroutine', 'debug', 'dofile', 'getmetatable', 'io', 'load', 'loadfile', 'os', 'package', 'pcall',
  'print', 'python', 'rawequal', 'rawget', 'rawlen', 'rawset', 'require', 'setmetatable', 'warn', 'xpcall',
}) do _G[name] = nil end

return compile, run, as_array, is_array, NULL, is_null, function() sethook() end
