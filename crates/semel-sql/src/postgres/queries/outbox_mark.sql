-- Invariant: only the lease that holds a row can mark it. Rows are locked in the order of their
-- numbers, so that two marks cannot deadlock. Returns the positions in the list that were written.
-- Dispositions: 0 published, 1 retry after $4, 2 dead, 3 dead and its partition waits, 4 as if it
-- had not been claimed, 5 the same but not before $4. The row that follows one that leaves its
-- partition becomes due now, if it was put off (outbox_put_off.sql explains when a mark may miss
-- that, and why it does no harm), whether or not the lease still holds the row: a row that becomes
-- due early does no harm. No lock is waited for: a following row that another transaction has locked
-- is skipped. A marked row that changed since the snapshot is checked for its lease again.
with req as materialized (
    select * from unnest($1::bigint[], $2::bytea[], $3::smallint[], $4::bigint[], $5::text[])
    with ordinality as q (sequence, token, fate, after_us, error, ord)
),
clock as materialized (
    select us, 9223372036854775807 - us as room
    from (select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us) t
),
-- Whether there may be rows that were put off: only those and what has failed are due later. Normally nothing
-- is, and the look behind every row is saved.
ahead as materialized (
    select count(*) filter (where w.status = 0) > 0 or count(*) = 100 as any
    from (
        select o.status from semel_outbox o where o.due_at > (select us from clock)
        order by o.due_at, o.sequence limit 100
    ) w
),
next as materialized (
    select n.sequence
    from req q join semel_outbox r on r.sequence = q.sequence cross join lateral (
        select n.sequence, n.status, n.due_at from semel_outbox n
        where n.partition_key = r.partition_key and n.sequence > r.sequence
        order by n.sequence limit 1
    ) n
    where (select a.any from ahead a) and q.fate in (0, 2)
        and n.status = 0 and n.due_at > (select us from clock)
),
behind as materialized (
    select o.sequence from next n join semel_outbox o on o.sequence = n.sequence
    where o.status = 0 and o.due_at > (select us from clock)
    for update of o skip locked
),
woken as (
    update semel_outbox o set due_at = c.us
    from behind b cross join clock c
    where o.sequence = b.sequence
),
done as (
    update semel_outbox r set
        status = case h.fate
            when 0 then 2
            when 1 then 3
            when 5 then 3
            when 4 then case when r.attempts > 1 then 3 else 0 end
            else 4 end,
        attempts = case when h.fate in (4, 5) then greatest(r.attempts - 1, 0) else r.attempts end,
        token = null, leased_until = null,
        due_at = case
            when h.fate in (1, 5) then c.us + case when h.after_us > c.room then c.room else h.after_us end
            when h.fate = 4 then c.us end,
        rest_us = case when h.fate in (1, 5) then h.after_us else r.rest_us end,
        in_partition = case when h.fate in (0, 2) then 0 else r.in_partition end,
        error = coalesce(h.error, r.error),
        published_at = case when h.fate = 0 then c.us else r.published_at end
    from req h cross join clock c
    where r.sequence = h.sequence and r.token = h.token and r.status = 1
    returning h.ord
)
select ord from done
