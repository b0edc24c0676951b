#!lua flags=allow-oom
-- Invariant: a record is ended only while it still matches the guard, and one write ends it. A full
-- server accepts it: work that has run must be recorded, or it runs again. At most one outcome per
-- running claim exceeds the limit that way, since a full server grants none. A settlement that is
-- no success keeps the retry payload that it finds; a success replaces it. The wake-up comes after
-- the write and may fail without harm: waiters also poll.
--
-- KEYS[1] record
-- ARGV    1-3 guard (first byte, last byte, expected bytes), 4 layout and state, or empty to remove,
--         5 spans, 6 the bytes after the identity (of a success all of them, else the error),
--         7 garbage collection (ms), or empty for never, 8 channel, 9 hint
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
local fence = struct.unpack('>I8', v, 3)
if ARGV[4] == '' then
  redis.call('DEL', KEYS[1])
else
  local t = redis.call('TIME') -- clock
  local now = t[1] * 1000000 + t[2]
  local number = struct.unpack('>I8', v, 27)
  local identity = struct.unpack('>I2', v, 112)
  local tail = ARGV[6]
  if string.byte(ARGV[4], 2) ~= 1 then
    -- Only a succeeded record has an outcome there, which is removed.
    local retry_payload = '\0'
    if string.byte(v, 2) ~= 1 then
      local at = 114 + identity
      if string.byte(v, at) == 1 and #v > at + 2 then
        at = at + 2 + struct.unpack('>I2', v, at + 1)
      end
      retry_payload = string.sub(v, at + 1)
      if retry_payload == '' then
        return -1
      end
    end
    tail = tail .. retry_payload
  end
  v = ARGV[4] .. string.sub(v, 3, 26) .. struct.pack('>I8I8I8', number + 1, now, now)
    .. string.sub(v, 51, 58) .. ARGV[5] .. string.sub(v, 83, 113 + identity) .. tail
  if ARGV[7] == '' then
    redis.call('SET', KEYS[1], v)
  else
    redis.call('SET', KEYS[1], v, 'PX', ARGV[7])
  end
end
redis.pcall('PUBLISH', ARGV[8], ARGV[9])
return fence
