-- Invariant: an operator's redrive changes only the version that was judged. The record becomes
-- Failed and due, its attempts count from zero, and its last error and its retry payload stay.
--
-- KEYS[1] record
-- ARGV    1-3 guard (first byte, last byte, expected bytes), 4 layout and state, 5 the spans of "no
--         lease, due at once", 6 the bytes of "no error, no retry payload", 7 the longest garbage
--         collection (us), 8 channel, 9 hint
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
local identity = struct.unpack('>I2', v, 112)
local keep = struct.unpack('>I8', v, 87)
local collect = math.floor(math.min(keep, tonumber(ARGV[7])) / 1000) + 10000
-- Only a succeeded record has an outcome, and it has no error: its tail is removed.
local tail = ARGV[6]
if string.byte(v, 2) ~= 1 then
  tail = string.sub(v, 114 + identity)
end
v = ARGV[4] .. string.sub(v, 3, 26) .. struct.pack('>I8I8I8', number + 1, now, now)
  .. string.sub(v, 51, 58) .. ARGV[5] .. string.sub(v, 87, 94) .. struct.pack('>I4', 0)
  .. string.sub(v, 87, 113 + identity) .. tail
redis.call('SET', KEYS[1], v, 'PX', string.format('%.0f', collect))
redis.pcall('PUBLISH', ARGV[8], ARGV[9])
return fence
