-- Keeps: an entry stays unless it still has the wrong value that was read.
--
-- KEYS[1] entry
-- ARGV[1] what it said; empty if it could not be read
-- Answers how many were removed.
local v = redis.pcall('GET', KEYS[1])
if not v or v == 'NULL' then
  return 0
end
-- Sixteen bytes in Base64: the last of the 22 characters carries two bits.
local readable = type(v) == 'string' and #v == 24 and string.find(v, '^[A-Za-z0-9+/]+[AQgw]==$')
if readable and v ~= ARGV[1] then
  return 0
end
return redis.call('DEL', KEYS[1])
