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
)
update semel_outbox o set due_at = c.us + o.rest_us
from late l cross join clock c
where o.sequence = l.sequence
