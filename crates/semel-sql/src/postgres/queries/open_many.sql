-- Invariant: as open.sql, for each of many different keys by itself: a key that another transaction
-- holds gives no row and delays no other key, and each grant reads the clock under its own lock,
-- which is not tried for a key that has a record. The lookups are lateral with an offset so that
-- they stay index lookups whatever the planner believes about the table's size.
with req as materialized (
    select * from unnest(
        $1::bytea[], $2::smallint[], $3::text[], $4::text[], $5::bytea[], $6::text[], $7::bytea[],
        $8::bytea[], $9::bytea[], $10::integer[], $11::text[], $12::bigint[], $13::smallint[],
        $14::bigint[], $15::bigint[], $16::bigint[], $17::bytea[], $18::text[], $19::text[])
    as q (digest, kind, tenant, scope, principal, id, fingerprint,
        operation_id, attempt_id, attempt, owner, lease_us, on_crash,
        keep_us, sweep_us, lock_key, body, content_type, reference)
),
clock as materialized (
    select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us
),
seen as materialized (
    select q.digest as wanted, r.*
    from req q cross join lateral (
        select * from semel_record r where r.digest = q.digest offset 0
    ) r
),
won as (
    insert into semel_record ({key}, {record}, sweep_at)
    select q.digest, q.kind, q.tenant, q.scope, q.principal, q.id, 1, q.fingerprint, 0,
        q.operation_id, q.attempt_id, q.attempt, c.us, q.owner,
        c.us + case when q.lease_us > c.room then c.room else q.lease_us end,
        null, q.on_crash, q.keep_us, q.body, q.content_type, q.reference, null, null,
        c.us, c.us, null, null,
        c.us + case when q.sweep_us > c.room then c.room else q.sweep_us end
    from req q cross join lateral (
        select us, 9223372036854775807 - us as room
        from (
            select (extract(epoch from case
                when q.digest = any (array(select s.wanted from seen s)) then null
                when pg_try_advisory_xact_lock(q.lock_key) then clock_timestamp()
            end) * 1000000)::bigint as us
            offset 0
        ) t
    ) c
    where c.us is not null
    on conflict (digest) do nothing
    returning digest, fence
)
select c.us, null::bigint as won,
    {r.record},
    r.wanted as digest
from seen r cross join clock c
union all
select c.us, w.fence as won,
    {r.record},
    w.digest
from won w cross join clock c
    left join (select * from semel_record where false) r on true
