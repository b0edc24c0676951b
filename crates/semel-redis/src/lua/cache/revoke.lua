-- Invariant: an absence never ends sooner. Any other entry is overwritten; a full server at least
-- removes it, and returns its error.
--
-- KEYS[1] entry
-- ARGV[1] the absence
-- ARGV[2] its life, milliseconds
-- Returns how many entries were written.
if redis.pcall('GET', KEYS[1]) == ARGV[1] and redis.call('PTTL', KEYS[1]) > tonumber(ARGV[2]) then
  return 0
end
local written = redis.pcall('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
if type(written) == 'table' and written.err then
  redis.pcall('DEL', KEYS[1])
  return written
end
return 1
