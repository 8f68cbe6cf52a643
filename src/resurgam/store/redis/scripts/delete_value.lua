-- Delete the value of a key, if there is one.
-- part: key
-- writes: value-<key> STRING, values ZSET of keys by the moment at which they expire

local function delete_value(call, part)
  values.drop(call, part[1])
end
