-- Invariant: only an absence is removed. The id exists now, and the next lookup finds it in the
-- map. An entry that lives longer than an absence is a revocation, and stays if this invalidation
-- comes late.
--
-- KEYS[1] entry
-- ARGV[1] longest life of an absence, milliseconds
-- Returns how many entries were removed.
if redis.pcall('GET', KEYS[1]) == 'NULL' and redis.call('PTTL', KEYS[1]) <= tonumber(ARGV[1]) then
  return redis.call('DEL', KEYS[1])
end
return 0
