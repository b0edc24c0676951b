#!lua flags=allow-oom
-- Invariant: only the holder extends its lease, to its full length from this server's now. The
-- lease is stored in the record; PX only collects abandoned claims, and only under Rerun: the
-- others become Uncertain. A full server accepts it: it writes as many bytes as it finds, and a
-- lease that lapsed for lack of memory would give running work to a second holder.
--
-- KEYS[1] record
-- ARGV    1-3 guard (first byte, last byte, expected bytes), 4 lease, 5 lease (us) and 6 the longest
--         keep (us), both for garbage collection
-- Returns 1, 0 if the guard does not hold, -1 if the record cannot be read.
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
local number = struct.unpack('>I8', v, 27)
local keep = struct.unpack('>I8', v, 87)
local rerun = string.byte(v, 95) == 0
v = string.sub(v, 1, 26) .. struct.pack('>I8I8', number + 1, now) .. string.sub(v, 43, 58)
  .. ARGV[4] .. string.sub(v, 67)
if rerun then
  local collect = math.floor((ARGV[5] + math.min(keep, tonumber(ARGV[6]))) / 1000) + 10000
  redis.call('SET', KEYS[1], v, 'PX', string.format('%.0f', collect))
else
  redis.call('SET', KEYS[1], v)
end
return 1
