-- Sets the idle time of a consumer's entry: zero to keep it; more, so that another consumer may
-- take it sooner. An entry that another consumer owns by now is not changed.
-- KEYS[1] the stream; ARGV the group, the consumer, the entry, the idle time in ms, the consumer
-- that owns the entry afterwards
local own = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1, ARGV[2])
if #own == 0 then
  return 0
end
redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[5], 0, ARGV[3], 'IDLE', ARGV[4], 'JUSTID')
return 1
