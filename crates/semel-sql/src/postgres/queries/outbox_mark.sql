-- Invariant: only the lease that holds a row can mark it. Rows are locked in the order of their
-- numbers, so that two marks cannot deadlock. Returns the positions in the list that were written.
-- Dispositions: 0 published, 1 retry after $4, 2 dead, 3 dead and its partition waits, 4 as if it
-- had not been claimed, 5 the same but not before $4. The row that follows one that leaves its
-- partition becomes due now, if it was put off (outbox_put_off.sql explains when a mark may miss
-- that, and why it does no harm). No lock is waited for: a following row that another transaction
-- has locked is skipped.
with req as materialized (
    select * from unnest($1::bigint[], $2::bytea[], $3::smallint[], $4::bigint[], $5::text[])
    with ordinality as q (sequence, token, fate, after_us, error, ord)
),
clock as materialized (
    select us, 9223372036854775807 - us as room
    from (select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us) t
),
held as materialized (
    select q.ord, q.fate, q.after_us, q.error, r.sequence, r.partition_key
    from req q cross join lateral (
        select r.sequence, r.partition_key from semel_outbox r
        where r.sequence = q.sequence and r.token = q.token and r.status = 1
        for update
    ) r
),
behind as materialized (
    select o.sequence
    from held h cross join lateral (
        select n.sequence from semel_outbox n where n.partition_key = h.partition_key and n.sequence > h.sequence
        order by n.sequence limit 1
    ) n
    join semel_outbox o on o.sequence = n.sequence
    where h.fate in (0, 2) and o.status = 0 and o.due_at > (select us from clock)
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
        token = null,
        due_at = case
            when h.fate in (1, 5) then c.us + case when h.after_us > c.room then c.room else h.after_us end
            when h.fate = 4 then c.us end,
        rest_us = case when h.fate in (1, 5) then h.after_us else r.rest_us end,
        partition_key = case when h.fate in (0, 2) then null else r.partition_key end,
        error = coalesce(h.error, r.error),
        published_at = case when h.fate = 0 then c.us else r.published_at end
    from held h cross join clock c
    where r.sequence = h.sequence
    returning h.ord
)
select ord from done
