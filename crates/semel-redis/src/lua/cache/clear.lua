-- Invariant: an entry is removed only if it still has the wrong value that was read.
--
-- KEYS[1] entry
-- ARGV[1] the value that was read; empty if it could not be read
-- Returns how many entries were removed.
local v = redis.pcall('GET', KEYS[1])
if not v or v == 'NULL' then
  return 0
end
-- Sixteen bytes in Base64: the last of the 22 characters has two bits.
local readable = type(v) == 'string' and #v == 24 and string.find(v, '^[A-Za-z0-9+/]+[AQgw]==$')
if readable and v ~= ARGV[1] then
  return 0
end
return redis.call('DEL', KEYS[1])
