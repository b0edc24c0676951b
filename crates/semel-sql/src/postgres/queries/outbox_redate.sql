-- Invariant: no row waits for longer than its lease, its backoff or the longest time for which rows
-- are put off ($1, with a moment's grace $2), whatever the clock's time was when it was written. At
-- most $3 rows are changed.
with clock as materialized (
    select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us
),
late as materialized (
    select o.sequence from semel_outbox o
    where o.due_at > (select us from clock) + $1
        and o.due_at - (select us from clock) - $2 > o.rest_us
    order by o.due_at, o.sequence
    limit $3
    for update skip locked
),
-- What is leased was due before most others.
first as materialized (
    select o.sequence, o.leased_until, o.rest_us from semel_outbox o
    where o.due_at <= (select us from clock) order by o.due_at, o.sequence limit 10 * $3
),
held as materialized (
    select o.sequence from first f join semel_outbox o on o.sequence = f.sequence
    where f.leased_until - (select us from clock) - $2 > f.rest_us
        and o.leased_until - (select us from clock) - $2 > o.rest_us
    limit $3
    for update of o skip locked
)
update semel_outbox o set
    due_at = case when o.due_at > c.us then c.us + o.rest_us else o.due_at end,
    leased_until = case when o.leased_until is not null then c.us + o.rest_us end
from (select l.sequence from late l union all select h.sequence from held h) l cross join clock c
where o.sequence = l.sequence
