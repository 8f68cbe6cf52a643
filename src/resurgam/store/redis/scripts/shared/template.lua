-- Templates: JSON whose caller could not know every value. One is a text, or a list of pieces with the names of holes
-- between them: { piece, name, piece, name, piece }. Values are numbers or texts; Redis decodes no JSON.

local ESCAPES = { ['"'] = '\\"', ['\\'] = '\\\\' }

local function quoted(text)
  return '"' .. string.gsub(text, '[%c"\\]', function(character)
    return ESCAPES[character] or string.format('\\u%04x', string.byte(character))
  end) .. '"'
end

local function fill(template, values)
  if type(template) == 'string' then return template end
  local pieces = {}
  for number, piece in ipairs(template) do
    if number % 2 == 0 then
      local value = values[piece]
      piece = type(value) == 'number' and string.format('%.0f', value) or quoted(value)
    end
    pieces[number] = piece
  end
  return table.concat(pieces)
end
