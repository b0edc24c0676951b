-- Invariant: a record and the clock by which it is judged are read in one step. Writes nothing.
--
-- KEYS[1] record
-- Returns { record, now }, or nil.
local v = redis.call('GET', KEYS[1])
if not v then
  return false
end
local t = redis.call('TIME') -- clock
return { v, t[1] * 1000000 + t[2] }
