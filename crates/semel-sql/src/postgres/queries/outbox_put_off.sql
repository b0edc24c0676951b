-- Invariant: a pending row that waits behind others of its partition is examined again when its
-- turn comes, and within bounded time whatever goes wrong. Of the first $1 due rows, those that
-- wait are put off, so that claims need not scan them again and again; nothing is put off if no
-- more than $2 rows are due. Returns how many rows were scanned, and how many were put off.
--
-- Why no row is forgotten: a statement that removes the row before it from the partition
-- (outbox_mark.sql, outbox_wake.sql) makes the next row due, and until then a claim of a row before
-- it claims it too. The danger is a mark whose snapshot does not show that the row was put off. The
-- head is locked here, in claims and in marks, and nothing is put off in its partition unless the
-- head is still as the snapshot of this statement shows it, so that the leased rows of the
-- partition are known. If the head is not leased, it is claimed after this statement has ended, and
-- its mark begins later still and sees everything. If the head is leased, its mark may have begun
-- and wait for the lock; but then the row that it should wake is the first one that is not leased,
-- and that row is put off for seconds only. The rows behind it are next only after a claim that
-- began later. A failed row has its backoff in the same column, so it is put off for seconds as
-- well, and is not woken. Rows whose lease lapsed are not put off: there are no more of them than
-- relays had leased. A row is put off for as long as it has waited so far, within bounds ($3 to $4
-- for seconds, $5 to $6 otherwise).
with clock as materialized (
    select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us
),
due as materialized (
    select o.sequence, o.partition_key, o.status from semel_outbox o
    where o.due_at <= (select us from clock) and o.leased_until is null
    order by o.due_at, o.sequence
    limit $1
),
looked as materialized (
    select count(*) as rows from due
),
partitions as materialized (
    select d.partition_key, array_agg(d.sequence) as rows
    from due d cross join looked l
    where d.partition_key is not null and d.status in (0, 3) and l.rows > $2
    group by d.partition_key
),
firsts as materialized (
    select l.partition_key, l.rows, f.sequence, f.status, f.due_at, f.leased_until
    from partitions l cross join lateral (
        select p.sequence, p.status, p.due_at, p.leased_until from semel_outbox p
        where p.partition_key = l.partition_key order by p.sequence limit 1
    ) f
),
heads as materialized (
    select h.sequence, h.partition_key, h.status, f.rows
    from firsts f join semel_outbox h on h.sequence = f.sequence
    where h.partition_key = f.partition_key and h.status = f.status and h.due_at is not distinct from f.due_at
        and h.leased_until is not distinct from f.leased_until
    for update of h skip locked
),
lines as materialized (
    select h.sequence, h.rows, case when h.status = 1 then (
        select n.sequence from semel_outbox n
        where n.partition_key = h.partition_key and n.sequence > h.sequence and n.status <> 1
        order by n.sequence limit 1
    ) end as next
    from heads h
),
waiting as materialized (
    select o.sequence, case
        when o.status = 3 or o.sequence = l.next then least(greatest(c.us - o.created_at, $3), $4)
        else least(greatest(c.us - o.created_at, $5), $6) end as span
    from clock c cross join lines l cross join lateral unnest(l.rows) as r (sequence)
    join semel_outbox o on o.sequence = r.sequence
    where r.sequence > l.sequence and o.status in (0, 3) and o.due_at <= c.us
    for update of o skip locked
),
put_off as (
    update semel_outbox o set due_at = c.us + w.span
    from waiting w cross join clock c
    where o.sequence = w.sequence
    returning 1
)
select (select rows from looked), (select count(*) from put_off)
