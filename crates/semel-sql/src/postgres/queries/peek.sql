-- Invariant: reads one record and the clock in one step; writes nothing, locks nothing.
with clock as materialized (
    select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us
)
select c.us, null::bigint as won,
    {r.record}
from clock c join semel_record r on r.digest = $1
