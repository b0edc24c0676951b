#!lua flags=allow-oom
-- Invariant: the times of a record that a clock wrote while it was ahead are set back to this
-- server's now, and only on the version that was judged. Spans, claim, fence and retry payload stay
-- as they are.
--
-- KEYS[1] record
-- ARGV    1-3 guard (first byte, last byte, expected bytes)
-- Returns the fence, 0 if the guard does not hold, -1 if the record cannot be read.
local v = redis.call('GET', KEYS[1])
if not v then
  return 0
end
if string.byte(v) ~= 1 or #v < 113 then
  return -1
end
if string.sub(v, ARGV[1], ARGV[2]) ~= ARGV[3] then
  return 0
end
local t = redis.call('TIME') -- clock
local now = t[1] * 1000000 + t[2]
local fence = struct.unpack('>I8', v, 3)
local number = struct.unpack('>I8', v, 27)
local updated = math.min(struct.unpack('>I8', v, 35), now)
local completed = math.min(struct.unpack('>I8', v, 43), now)
v = string.sub(v, 1, 26) .. struct.pack('>I8I8I8', number + 1, updated, completed)
  .. string.sub(v, 51)
redis.call('SET', KEYS[1], v, 'KEEPTTL')
return fence
