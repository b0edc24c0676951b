-- Invariant: a new grant replaces only the version that was judged, and its fence is larger than
-- every earlier fence of this key.
--
-- KEYS[1] record
-- ARGV    1-3 guard (first byte, last byte, expected bytes), 4 layout and state, 5 attempt id,
--         6 the bytes from the spans on, 7 garbage collection (ms), or empty for never,
--         8 '1' if the operation continues: its number and creation time stay
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
local last = struct.unpack('>I8', v, 3)
local fence = math.max(last + 1, now)
local number, created = 1, now
if ARGV[8] == '1' then
  number = struct.unpack('>I8', v, 27) + 1
  created = struct.unpack('>I8', v, 51)
end
v = struct.pack('>c2I8c16I8I8I8I8c0', ARGV[4], fence, ARGV[5], number, now, 0, created, ARGV[6])
if ARGV[7] == '' then
  redis.call('SET', KEYS[1], v)
else
  redis.call('SET', KEYS[1], v, 'PX', ARGV[7])
end
return fence
