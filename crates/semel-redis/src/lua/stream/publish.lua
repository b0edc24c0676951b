-- Appends events and wakes the sources. A server without room refuses the first, and so all.
-- KEYS[1] the stream; ARGV the channel, the hint, how many, then one event after another
local count = tonumber(ARGV[3])
for at = 1, count do
  redis.call('XADD', KEYS[1], '*', 'event', ARGV[3 + at])
end
redis.pcall('PUBLISH', ARGV[1], ARGV[2])
return count
