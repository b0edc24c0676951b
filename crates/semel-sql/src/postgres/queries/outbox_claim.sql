-- Invariant: no row is leased to two relays, and none while an earlier row of its partition is
-- neither published nor given up nor part of the same claim. $1 is the largest number of rows, $2
-- the length of the lease, $3 its token, $4 the number of due rows to scan for heads, $5 the
-- largest number of payload bytes (but always one row, whatever its size), $6 the largest payload of an
-- event: a larger one is not read. Each returned row tells whether more rows are due than were scanned.
-- A text payload that begins with \x is bytes that a driver has cast to text: JSON never does.
--
-- How it works: `heads` are due rows without an earlier row in their partition, the longest due
-- first. `lapsed` is the one whose lease lapsed first, due since then. If it is due before all
-- heads, it is claimed alone (it may be the row that crashes relays); otherwise rows with a lapsed
-- lease wait for their turn. If the claim is not
-- full, the rows that follow the heads are claimed too (`trail`, `followers`), in order and without
-- a gap. A pending row is claimed this way whatever its due time: it may have been put off because
-- it waits for others (outbox_put_off.sql), and the due time of a pending row means nothing else. A
-- failed row rests, and the rows behind it rest with it.
--
-- Why it is correct with several concurrent claims in READ COMMITTED: all parts of a statement see
-- the snapshot of its beginning. Only a row that is locked is read again in its current version,
-- and then only its own conditions are checked again.
-- * A head that another relay leased, marked or gave up since the snapshot: once it is locked,
--   due_at and leased_until are checked again, and the row drops out. A head that is locked by
--   another is skipped.
-- * "No earlier row in the partition" is true in the snapshot and stays true: a row enters a
--   partition before others only if its transaction commits after those with later numbers (then
--   they were concurrent and have no order), or if an operator makes it due again.
-- * An earlier row that left the partition since the snapshot still blocks here. That only delays:
--   the next claim finds the head.
-- * A follower belongs to this claim once its head is locked: no other claim can take it while its
--   head is in the way. It can have been leased together with its head between the snapshot and
--   that lock, if the head was given back since. So followers are locked and checked again as well,
--   and if one drops out or is locked, the rows behind it are not claimed: `held` counts the run
--   from the head.
with clock as materialized (
    select us, 9223372036854775807 - us as room
    from (select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us) t
),
due as materialized (
    select o.due_at, o.sequence from semel_outbox o
    where o.due_at <= (select us from clock) and o.leased_until is null
    order by o.due_at, o.sequence
    limit $4 + 1
),
horizon as materialized (
    select d.due_at, d.sequence from due d where (select count(*) from due) > $4
    order by d.due_at desc, d.sequence desc limit 1
),
heads as materialized (
    select o.sequence, o.partition_key, o.due_at, o.status, coalesce(octet_length(o.payload), octet_length(o.payload_bytes), 0) as size
    from semel_outbox o
    where o.due_at <= (select us from clock) -- claimed by state
        and o.leased_until is null
        and (o.due_at, o.sequence) <= (
            coalesce((select h.due_at from horizon h), 9223372036854775807),
            coalesce((select h.sequence from horizon h), 9223372036854775807))
        and (o.partition_key is null or not exists (
            select from semel_outbox p where p.partition_key = o.partition_key and p.sequence < o.sequence
        ))
    order by o.due_at, o.sequence
    limit $1
    for update of o skip locked
),
lapsed as materialized (
    select o.sequence, o.partition_key, o.leased_until as due_at, o.status,
        coalesce(octet_length(o.payload), octet_length(o.payload_bytes), 0) as size
    from (
        select l.sequence, l.leased_until from semel_outbox l
        where l.due_at <= coalesce((select h.due_at from horizon h), (select us from clock))
            and l.leased_until <= coalesce((select h.due_at from horizon h), (select us from clock))
        order by l.leased_until, l.sequence
    ) d join semel_outbox o on o.sequence = d.sequence
    where o.due_at is not null and o.leased_until <= (select us from clock)
        and (o.partition_key is null or not exists (
            select from semel_outbox p where p.partition_key = o.partition_key and p.sequence < o.sequence
        ))
    order by d.leased_until, d.sequence
    limit 1
    for update of o skip locked
),
first as materialized (
    select h.due_at, h.sequence from heads h order by h.due_at, h.sequence limit 1
),
alone as materialized (
    select l.* from lapsed l where not exists (
        select from first f where (f.due_at, f.sequence) < (l.due_at, l.sequence)
    )
),
fit as materialized (
    select a.sequence, a.partition_key, a.due_at, a.status, a.size from alone a
    union all
    select h.sequence, h.partition_key, h.due_at, h.status, h.size from heads h
    where not exists (select from alone)
),
rest as materialized (
    select greatest($1 - count(*), 0) as rows from fit
),
trail as materialized (
    select t.sequence, h.sequence as head, row_number() over run as place,
        bool_and(t.ready) over run as ready
    from fit h cross join lateral (
        select n.sequence,
            n.status = 0 or n.status = 3 and n.due_at <= (select us from clock) as ready
        from semel_outbox n
        where n.partition_key = h.partition_key and n.sequence > h.sequence
        order by n.sequence
        limit (select rows from rest)
    ) t
    where h.status <> 1
    window run as (partition by h.sequence order by t.sequence)
),
-- One more row of each partition before two more of any: rows that are claimed together should not
-- have to wait for each other.
next as materialized (
    select t.sequence, t.head, t.place from trail t where t.ready
    order by t.place, t.sequence
    limit (select rows from rest)
),
followers as materialized (
    select o.sequence, n.head, n.place, coalesce(octet_length(o.payload), octet_length(o.payload_bytes), 0) as size
    from next n join semel_outbox o on o.sequence = n.sequence
    where o.status = 0 or o.status = 3 and o.due_at <= (select us from clock)
    for update of o skip locked
),
held as materialized (
    select f.sequence, f.place, f.size, count(*) over (partition by f.head order by f.place) as run
    from followers f
),
-- A head comes before its followers, and each follower before the next, so wherever the limit of
-- bytes cuts, the claimed rows of a partition have no gap.
weighed as materialized (
    select t.sequence, row_number() over turns as turn, sum(t.size) over turns as bytes
    from (
        select f.sequence, 0 as place, f.due_at, f.size from fit f
        union all
        select h.sequence, h.place, null, h.size from held h where h.run = h.place
    ) t
    window turns as (order by t.place, t.due_at, t.sequence rows unbounded preceding)
),
chosen as materialized (
    select w.sequence from weighed w where w.turn = 1 or w.bytes <= $5
),
taken as (
    update semel_outbox o set
        status = 1, attempts = o.attempts + 1, token = $3, rest_us = $2,
        leased_until = c.us + case when $2 > c.room then c.room else $2 end,
        -- A follower may have been put off. When its lease is over, it is due.
        due_at = least(o.due_at, c.us)
    from chosen x cross join clock c
    where o.sequence = x.sequence
    returning c.us as now, o.*
)
select now, sequence, attempts::bigint, created_at, id, tenant, aggregatetype, aggregateid, type,
    source,
    case when coalesce(octet_length(payload), octet_length(payload_bytes), 0) > $6 then null
        when payload is null then coalesce(payload_bytes, '')
        when payload ~ '^\\x([0-9A-Fa-f]{2})*$' then decode(substr(payload, 3), 'hex')
        else convert_to(payload, 'UTF8') end,
    content_type, headers, occurred_at, exists (select from horizon)
from taken
order by sequence
