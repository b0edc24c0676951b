-- Invariant: reads whether the key that hold_key.sql asked for is free, and the clock, which is the fence of a
-- fresh claim: it is read under the lock, so it is above the fence of every insert before it. Where there is a
-- record, or a server that takes no writes, the mark is taken back, and open.sql has the word. Gives true if the
-- key is held and free, false if another transaction holds it, null if open.sql is to be asked.
select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us,
    case
        when k.asks then nullif(set_config('semel.claim', '', true) = '', true)
        else current_setting('semel.claim', true) <> ''
    end as free
from (
    select exists (select from semel_record r where r.digest = $1::bytea)
        or current_setting('transaction_read_only')::boolean as asks
) k
