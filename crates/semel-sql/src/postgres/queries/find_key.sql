-- Invariant: reads whether the key that hold_key.sql tried to hold is free, and the clock, which
-- becomes the fence of a new claim: it is read after the lock was taken, so it is above the fence
-- of every earlier insert. If the key has a record, or the server takes no writes, the mark is
-- removed and open.sql decides. Returns true if this transaction holds the key and it has no
-- record, false if another transaction holds the key, null if open.sql must decide.
select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us,
    case
        when k.asks then nullif(set_config('semel.claim', '', true) = '', true)
        else current_setting('semel.claim', true) <> ''
    end as free
from (
    select exists (select from semel_record r where r.digest = $1::bytea)
        or current_setting('transaction_read_only')::boolean as asks
) k
