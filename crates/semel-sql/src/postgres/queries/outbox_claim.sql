-- Invariant: no row is leased to two relays, and none while an earlier one of its partition is neither
-- published nor given up nor part of this very claim. $1 rows at most, $2 the lease, $3 its token, $4
-- how many due rows to look through for heads, $5 how many bytes of payload at most (one row, whatever
-- its size). Each row says whether there is more due than was looked through.
--
-- How it goes: `heads` are due rows that nothing of their partition comes before, the longest due first;
-- `lapsed` is the first of those whose lease ran out, due since then. If it is due before all heads, it
-- is taken alone (it may be what kills relays), else it waits for its turn. Where there is room left, the rows that follow the heads
-- come along (`trail`, `followers`), in order, without a gap. A pending row comes along whenever it
-- is due: it may have been put off because it waits for others (outbox_put_off), and that is all that
-- the time of a pending row means. A failed one rests, and those behind it with it.
--
-- Why it holds with several claims at once, in READ COMMITTED. All parts of a statement see the one
-- snapshot of its beginning; only a row that is locked is looked at again as it is now, and then only
-- its own conditions are asked again.
-- * A head that another relay leased, marked or gave up since the snapshot: once it is locked, due_at and
--   leased_until are asked again; one is null or in the future, and the row drops out. One that is locked
--   is skipped.
-- * "Nothing comes before it" is true as of the snapshot and stays true: a row enters a partition before
--   others only if its transaction commits after those of later numbers (then they were concurrent,
--   and have no order) or an operator sends it round again.
-- * An earlier row of the partition that left it since the snapshot still blocks here. That is only late:
--   the next claim finds the head.
-- * A follower is ours once its head is locked: no other claim can have it while its head is in the way. It
--   can have been leased between the snapshot and that lock, with its head, which was given back
--   since. So followers are locked and asked again as well, and where one drops out (or is locked),
--   those behind it stay: `held` counts the run from the head.
with clock as materialized (
    select us, 9223372036854775807 - us as room
    from (select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us) t
),
due as materialized (
    select o.due_at, o.sequence, o.leased_until from semel_outbox o
    where o.due_at <= (select us from clock)
        and (o.leased_until is null or o.leased_until <= (select us from clock))
    order by o.due_at, o.sequence
    limit $4 + 1
),
horizon as materialized (
    select d.due_at, d.sequence from due d where (select count(*) from due) > $4
    order by d.due_at desc, d.sequence desc limit 1
),
heads as materialized (
    select o.sequence, o.partition_key, o.due_at, o.status, octet_length(o.payload) as size
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
        octet_length(o.payload) as size
    from (
        select d.sequence, d.leased_until from due d where d.leased_until is not null
        order by d.leased_until, d.sequence
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
-- One more of each partition before two more of any: what leaves together must not wait for each other.
next as materialized (
    select t.sequence, t.head, t.place from trail t where t.ready
    order by t.place, t.sequence
    limit (select rows from rest)
),
followers as materialized (
    select o.sequence, n.head, n.place, octet_length(o.payload) as size
    from next n join semel_outbox o on o.sequence = n.sequence
    where o.status = 0 or o.status = 3 and o.due_at <= (select us from clock)
    for update of o skip locked
),
held as materialized (
    select f.sequence, f.place, f.size, count(*) over (partition by f.head order by f.place) as run
    from followers f
),
-- A head comes before its followers and each of those before the next, so wherever the bytes end,
-- what is left of a partition has no gap.
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
        leased_until = c.us + case when $2 > c.room then c.room else $2 end
    from chosen x cross join clock c
    where o.sequence = x.sequence
    returning c.us as now, o.*
)
select now, sequence, attempts::bigint, created_at, id, tenant, aggregatetype, aggregateid, type,
    source, payload, content_type, headers, occurred_at, exists (select from horizon)
from taken
order by sequence
