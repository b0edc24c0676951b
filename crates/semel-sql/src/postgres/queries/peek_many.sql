-- Invariant: as peek.sql, for many keys.
with clock as materialized (
    select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us
)
select c.us, null::bigint as won,
    r.number, r.fingerprint, r.state, r.operation_id, r.attempt_id, r.attempt, r.fence, r.owner,
    r.lease_until, r.retry_at, r.on_crash, r.keep_us, r.body, r.content_type, r.reference,
    r.omitted_bytes, r.error, r.created_at, r.updated_at, r.completed_at, r.expires_at,
    r.digest
from unnest($1::bytea[]) as q (digest) cross join clock c cross join lateral (
    select * from semel_record r where r.digest = q.digest offset 0
) r
