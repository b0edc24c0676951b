-- Keeps: an entry that can be read stays, even if it came after somebody saw one that could not.
--
-- KEYS[1] entry
-- Answers how many were removed.
local v = redis.pcall('GET', KEYS[1])
if not v or v == 'NULL' then
  return 0
end
-- Sixteen bytes in Base64: the last of the 22 characters carries two bits.
if type(v) == 'string' and #v == 24 and string.find(v, '^[A-Za-z0-9+/]+[AQgw]==$') then
  return 0
end
return redis.call('DEL', KEYS[1])
