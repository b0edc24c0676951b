-- Takes entries that were idle for too long, and then new ones.
-- KEYS[1] the stream; ARGV the group, the consumer, the patience in ms, the number of entries, the
-- cursor of the search for entries that others left. Returns the next cursor, the entries, and how
-- many of them were delivered before.
local claimed = redis.call('XAUTOCLAIM', KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[5], 'COUNT', ARGV[4])
local taken = claimed[2]
local again = #taken
local room = tonumber(ARGV[4]) - #taken
if room > 0 then
  local read = redis.call(
    'XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', room, 'STREAMS', KEYS[1], '>')
  if read then
    for _, entry in ipairs(read[1][2]) do
      taken[#taken + 1] = entry
    end
  end
end
return { claimed[1], taken, again }
