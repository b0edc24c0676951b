-- Keeps: nothing but an absence is taken away. The id is there now; who looks finds it in the map.
-- What has longer to live than an absence is a revocation, and a word that comes late leaves it.
--
-- KEYS[1] entry
-- ARGV[1] longest life of an absence, milliseconds
-- Answers how many were removed.
if redis.pcall('GET', KEYS[1]) == 'NULL' and redis.call('PTTL', KEYS[1]) <= tonumber(ARGV[1]) then
  return redis.call('DEL', KEYS[1])
end
return 0
