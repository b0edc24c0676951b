-- Invariant: of all callers that open a key without a record, the primary key lets one insert; none
-- waits for another. An uncommitted insert holds the try-lock until its transaction ends, so
-- another caller gets "contended" instead of waiting for that transaction. The clock of a grant is
-- read under the lock (a case is evaluated in order), so its fence is above that of every earlier
-- insert, even of one that was made and removed since this statement's snapshot. An existing record
-- is read and not changed. The statement also runs inside callers' transactions ($20), which it
-- marks: see settle_in.sql. A transaction that holds the key itself, with its record not written
-- yet (hold_key.sql), gets "contended" too.
with seen as materialized (
    select * from semel_record r where r.digest = $1
),
won as (
    insert into semel_record ({key}, {record}, sweep_at)
    select $1, $2, $3, $4, $5, $6, 1, $7, 0, $8,
        $9, $10, c.us, $11,
        c.us + case when $12 > c.room then c.room else $12 end,
        null, $13, $14, $17, $18, $19, null, null, c.us, c.us, null, null,
        c.us + case when $15 > c.room then c.room else $15 end
    from (
        select us, 9223372036854775807 - us as room
        from (
            select (extract(epoch from case
                when exists (select from seen) then null
                when current_setting('semel.claim', true)
                    = encode($1, 'hex') || '@' || 'semel_record'::regclass::oid::text then null
                when pg_try_advisory_xact_lock($16) then clock_timestamp()
            end) * 1000000)::bigint as us
            offset 0
        ) t
    ) c
    where c.us is not null
    on conflict (digest) do nothing
    returning fence
)
select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us, w.fence as won,
    {r.record},
    case when $20 then set_config('semel.unit', 'open', true) end as mark
from (select) one
    left join won w on true
    left join seen r on true
