-- Removes an entry from the group's pending list and, if asked to, from the stream.
-- KEYS[1] the stream; ARGV the group, the entry, whether to delete it
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
if ARGV[3] == '1' then
  redis.call('XDEL', KEYS[1], ARGV[2])
end
return 1
