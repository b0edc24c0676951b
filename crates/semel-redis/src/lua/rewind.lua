-- For tests only. Invariant: a record looks as if it had been written earlier by the given span;
-- its version and its fence stay as they are.
--
-- KEYS[1] record
-- ARGV    1 span (us)
-- Returns 1, or 0 if there is no record that can be read.
local v = redis.call('GET', KEYS[1])
if not v or string.byte(v) ~= 1 or #v < 113 then
  return 0
end
local times = ''
for at = 35, 51, 8 do
  local moment = struct.unpack('>I8', v, at)
  if moment > 0 then
    moment = math.max(moment - ARGV[1], 1)
  end
  times = times .. struct.pack('>I8', moment)
end
redis.call('SET', KEYS[1], string.sub(v, 1, 34) .. times .. string.sub(v, 59), 'KEEPTTL')
return 1
