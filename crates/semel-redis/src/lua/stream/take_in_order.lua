-- Takes the next entry in order: a pending one is waited for, and taken over if it was idle for the
-- patience; a new one is read only if none is pending.
-- KEYS[1] the stream; ARGV the group, the consumer, the patience in ms
local head = redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1)[1]
if head then
  if head[3] < tonumber(ARGV[3]) then
    return { '0-0', {}, 0 }
  end
  local claimed = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], ARGV[3], head[1])
  if claimed[1] then
    return { '0-0', claimed, 1 }
  end
  -- The entry was deleted from the stream, and claiming it has removed it from the pending list.
  -- The next call finds the next entry.
  redis.call('XACK', KEYS[1], ARGV[1], head[1])
  return { '0-0', {}, 0 }
end
local read = redis.call('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', 1, 'STREAMS', KEYS[1], '>')
return { '0-0', read and read[1][2] or {}, 0 }
