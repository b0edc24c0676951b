-- Says how long ago a consumer's entry was last in hands: nothing, to keep it; more, so that the
-- group's patience with it ends sooner. An entry that is somebody else's by now is left alone.
-- KEYS[1] the stream; ARGV the group, the consumer, the entry, how long ago in ms, whose it is now
local own = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1, ARGV[2])
if #own == 0 then
  return 0
end
redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[5], 0, ARGV[3], 'IDLE', ARGV[4], 'JUSTID')
return 1
