-- Removes the entries that every group has acked and that are older than a span. A stream without
-- groups is not trimmed.
-- KEYS[1] the stream; ARGV the span in ms
local function parts(id)
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  return tonumber(ms), tonumber(seq)
end
local function before(a, b)
  local a_ms, a_seq = parts(a)
  local b_ms, b_seq = parts(b)
  return a_ms < b_ms or (a_ms == b_ms and a_seq < b_seq)
end
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 0
end
local t = redis.call('TIME')
local first = string.format('%.0f-0', math.max(0, t[1] * 1000 + math.floor(t[2] / 1000) - ARGV[1]))
local groups = redis.call('XINFO', 'GROUPS', KEYS[1])
if #groups == 0 then
  return 0
end
for _, group in ipairs(groups) do
  local about = {}
  for at = 1, #group, 2 do
    about[group[at]] = group[at + 1]
  end
  local ms, seq = parts(about['last-delivered-id'])
  local needed = string.format('%.0f-%.0f', ms, seq + 1)
  local pending = redis.call('XPENDING', KEYS[1], about['name'])
  if pending[1] > 0 and before(pending[2], needed) then
    needed = pending[2]
  end
  if before(needed, first) then
    first = needed
  end
end
return redis.call('XTRIM', KEYS[1], 'MINID', first)
