-- Appends events and wakes the sources. A full server refuses the first, and thereby all.
-- KEYS[1] the stream; ARGV the channel, the hint, the number of events, then the events
local count = tonumber(ARGV[3])
for at = 1, count do
  redis.call('XADD', KEYS[1], '*', 'event', ARGV[3 + at])
end
redis.pcall('PUBLISH', ARGV[1], ARGV[2])
return count
