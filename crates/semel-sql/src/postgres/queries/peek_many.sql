-- Invariant: as peek.sql, for many keys.
with clock as materialized (
    select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us
)
select c.us, null::bigint as won,
    {r.record},
    r.digest
from unnest($1::bytea[]) as q (digest) cross join clock c cross join lateral (
    select * from semel_record r where r.digest = q.digest offset 0
) r
