-- Creates the stream and the group, unless they exist.
-- KEYS[1] the stream; ARGV the group, the id after which it begins
local made = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], ARGV[2], 'MKSTREAM')
if made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then
  return made
end
return 1
