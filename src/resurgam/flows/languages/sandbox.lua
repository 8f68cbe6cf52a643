-- Build the place in which scripts run. Called once for each Lua state, with the limits; returns the functions by
-- which scripts are compiled and run, and values are told apart.
--
-- Nothing leads out of it: no input or output, no loading of code, no metatables, no coroutines (they would have hooks of
-- their own) and no pcall (it would catch the error of a limit). Values are copied in and out, so no object of Python is
-- ever inside.
local max_steps, max_seconds, every, max_search, thread_seconds = ...

local sethook, clock, error, type, setmetatable, getmetatable, load, pairs, select, tostring =
  debug.sethook, os.clock, error, type, setmetatable, getmetatable, load, pairs, select, tostring
local find, rep, sub, format, unpack = string.find, string.rep, string.sub, string.format, table.unpack

local ARRAY = { __metatable = false } -- tells an empty array from an empty object
local NULL = {} -- null inside an array, where nil would be a hole

local steps, begun, looked = 0, 0, 0

-- Count work, and stop the script at a limit. The clock of the process is cheap, but it counts the work of all threads;
-- that of the thread is asked only when the cheap one has moved on.
local function charge(work)
  steps = steps + work
  if steps > max_steps then error('the script exceeded ' .. max_steps .. ' steps', 0) end
  local now = clock()
  if now - looked > 0.02 then
    looked = now
    if thread_seconds() - begun > max_seconds then error('the script exceeded ' .. max_seconds .. ' s', 0) end
  end
end

-- The hook sees every instruction of Lua, but not what a function of C does meanwhile. Most take time in proportion to
-- their argument, whose size the memory limit bounds. The others are replaced or bounded here.

-- Return where a set in a pattern ends: at its bracket, or at the end of a malformed pattern.
local function after_set(pattern, at)
  at = at + 1
  if sub(pattern, at, at) == '^' then at = at + 1 end
  repeat
    if sub(pattern, at, at) == '%' then at = at + 1 end
    at = at + 1
  until at > #pattern or sub(pattern, at, at) == ']'
  return at + 1
end

-- Return how many parts of a pattern can match texts of any length, how many can be left out, and whether the last is one
-- of the former: then nothing can fail after it, and it is not tried again.
local function parts(pattern)
  local unbounded, optional, at_end, at = 0, 0, false, 1
  while at <= #pattern do
    local char = sub(pattern, at, at)
    if char == '%' then
      local escaped = sub(pattern, at + 1, at + 1)
      if find(escaped, '[b%d]') then unbounded = unbounded + 1 end
      at, at_end = at + (escaped == 'b' and 4 or 2), false
    elseif char == '[' then
      at, at_end = after_set(pattern, at), false
    else
      if find(char, '[*+-]') then
        unbounded, at_end = unbounded + 1, true
      elseif char ~= ')' then
        at_end = false
      end
      if char == '?' then optional = optional + 1 end
      at = at + 1
    end
  end
  return unbounded, optional, at_end
end

-- Count the work of a search, as far as it can be known before: the positions at which each part can begin.
local function charge_search(subject, pattern, plain, anchored)
  local power, choices = 1, 1
  if not plain then
    local unbounded, optional, at_end = parts(pattern)
    power, choices = 1 + unbounded, 2.0 ^ optional
    if at_end then power = power - 1 end
    if anchored and sub(pattern, 1, 1) == '^' then power = power - 1 end
  end
  local work = choices * (1 + #pattern / 16)
  for part = 1, power do work = work * (#subject + 1) / part end
  if work > max_search then
    error('the pattern ' .. format('%q', sub(pattern, 1, 40)) .. ' may take too long on a text of this length', 3)
  end
  charge(work // 100)
end

local function is_text(value)
  return type(value) == 'string' or type(value) == 'number'
end

local function bound_search(name)
  local original = string[name]
  string[name] = function(subject, pattern, ...)
    -- The original complains of other arguments.
    if is_text(subject) and is_text(pattern) then
      local plain = name == 'find' and select('#', ...) > 1 and select(2, ...)
      charge_search(tostring(subject), tostring(pattern), plain, name ~= 'gmatch')
    end
    return original(subject, pattern, ...)
  end
end

for _, name in ipairs({ 'find', 'match', 'gmatch', 'gsub' }) do bound_search(name) end
string.dump, string.pack, string.unpack, string.packsize = nil, nil, nil, nil

-- The original counts up to the number also if there is nothing to repeat.
function string.rep(text, number, separator)
  if is_text(text) and type(number) == 'number' and (separator == nil or is_text(separator)) then
    local length = #tostring(text) + #tostring(separator or '')
    if length == 0 then return '' end
    if number > 0 then charge(math.min(length * number, 2 ^ 26) // 100) end -- beyond that the memory is the limit
  end
  return rep(text, number, separator)
end

-- The original moves any number of nils.
function table.move(from, first, last, at, to)
  to = to or from
  if at > last or at <= first or to ~= from then
    for offset = 0, last - first do to[at + offset] = from[first + offset] end
  else
    for offset = last - first, 0, -1 do to[at + offset] = from[first + offset] end
  end
  return to
end

local function merge(from, to, low, middle, high, less)
  local left, right = low, middle
  for at = low, high - 1 do
    if left < middle and (right >= high or not less(from[right], from[left])) then
      to[at], left = from[left], left + 1
    else
      to[at], right = from[right], right + 1
    end
  end
end

-- The original compares long texts without being seen by the hook, and equal elements change places by chance.
function table.sort(list, less)
  less = less or function(one, other) return one < other end
  local from, to, count, width = list, {}, #list, 1
  while width < count do
    for low = 1, count, 2 * width do
      local middle, high = low + width, low + 2 * width
      merge(from, to, low, middle <= count and middle or count + 1, high <= count and high or count + 1, less)
    end
    from, to, width = to, from, 2 * width
  end
  if from ~= list then
    for at = 1, count do list[at] = from[at] end
  end
end

-- The originals show where in memory a table is, which is no business of a script and different each time.
local function shown(value)
  local kind = type(value)
  if kind == 'table' or kind == 'function' then return kind end
  return tostring(value)
end

function string.format(form, ...)
  local values = { ... }
  for at = 1, select('#', ...) do
    local kind = type(values[at])
    if kind == 'table' or kind == 'function' then values[at] = kind end
  end
  if find(tostring(form), '%%[^%a%%]*p') then error('%p is no format here', 2) end
  return format(form, unpack(values, 1, select('#', ...)))
end

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
    tonumber = tonumber, tostring = shown, type = type, math = math, string = copy(string), table = copy(table),
    utf8 = copy(utf8),
  }
end

local function compile(text, name)
  return load(text, name, 't', {})
end

local function run(text, name, arguments, number)
  local chunk, problem = load(text, name, 't', environment())
  if not chunk then error(problem, 0) end
  steps, begun, looked = 0, thread_seconds(), clock()
  sethook(function() charge(every) end, '', every)
  return chunk(unpack(arguments, 1, number))
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
