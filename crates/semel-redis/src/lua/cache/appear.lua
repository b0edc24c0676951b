-- Keeps: nothing but an absence is taken away. The id is there now; who looks finds it in the map.
--
-- KEYS[1] entry
-- Answers how many were removed.
if redis.pcall('GET', KEYS[1]) == 'NULL' then
  return redis.call('DEL', KEYS[1])
end
return 0
