-- Return the state of a query, 'gone', 'open' or 'answered', and its result as JSON.
-- part: query id
-- reads only: query-<id> HASH: until, result

local function query_result(call, part)
  local state, result = queries.state(call, part[1])
  return { state, result or '' }
end
