-- Invariant: one grant per key. The claim is written only if there is no record, with a fence and
-- times by this server's clock; a second caller reads what the first one wrote. This also holds on
-- a server that takes no writes (full, without its disk, without its replicas): an existing record
-- is read, and only a new key is refused. A replica refuses both, since its data may be old.
--
-- KEYS[1] record
-- ARGV    1 layout and state, 2 attempt id, 3 the bytes from the spans on,
--         4 garbage collection (ms), or empty for never
-- Returns the fence, or { record, now }.
local t = redis.call('TIME') -- clock
local now = t[1] * 1000000 + t[2]
local v = struct.pack('>c2I8c16I8I8I8I8c0', ARGV[1], now, ARGV[2], 1, now, 0, now, ARGV[3])
local held
if ARGV[4] == '' then
  held = redis.pcall('SET', KEYS[1], v, 'NX', 'GET')
else
  held = redis.pcall('SET', KEYS[1], v, 'NX', 'GET', 'PX', ARGV[4])
end
if type(held) == 'table' and held.err then
  local code = string.match(held.err, '^%-?(%u+)')
  local readable = code == 'OOM' or code == 'MISCONF' or code == 'NOREPLICAS'
  local record = readable and redis.pcall('GET', KEYS[1])
  if type(record) ~= 'string' then
    return held
  end
  held = record
end
if held then
  return { held, now }
end
return now
