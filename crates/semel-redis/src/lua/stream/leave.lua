-- Removes consumers without pending entries from the group: this one, and those that have been idle
-- for long.
-- KEYS[1] the stream; ARGV the group, the consumer that leaves, the idle time in ms
local gone = 0
for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local about = {}
  for at = 1, #consumer, 2 do
    about[consumer[at]] = consumer[at + 1]
  end
  local leaves = about['name'] == ARGV[2] or about['idle'] > tonumber(ARGV[3])
  if leaves and about['pending'] == 0 then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], about['name'])
    gone = gone + 1
  end
end
return gone
