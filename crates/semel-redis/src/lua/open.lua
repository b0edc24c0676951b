-- Keeps: one grant per key. The claim is written only where there was nothing, with a fence and
-- times by this server's clock; whoever comes second reads what the first one wrote.
--
-- KEYS[1] record
-- ARGV    1 layout and state, 2 attempt id, 3 the bytes from the spans on,
--         4 garbage collection (ms), or empty for never
-- Answers the fence, or { record, now }.
local t = redis.call('TIME') -- clock
local now = t[1] * 1000000 + t[2]
local v = struct.pack('>c2I8c16I8I8I8I8c0', ARGV[1], now, ARGV[2], 1, now, 0, now, ARGV[3])
local held
if ARGV[4] == '' then
  held = redis.call('SET', KEYS[1], v, 'NX', 'GET')
else
  held = redis.call('SET', KEYS[1], v, 'NX', 'GET', 'PX', ARGV[4])
end
if held then
  return { held, now }
end
return now
