-- Invariant: the same transaction has removed rows from their partitions; $1 are the partitions, $2
-- the numbers of the rows. The next row in each partition becomes due, if it was put off. A row
-- that another transaction has locked is skipped: it becomes due by itself.
with clock as materialized (
    select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us
),
behind as materialized (
    select o.sequence
    from unnest($1::text[], $2::bigint[]) as x (partition_key, sequence) cross join lateral (
        select n.sequence from semel_outbox n where n.partition_key = x.partition_key and n.sequence > x.sequence
        order by n.sequence limit 1
    ) n
    join semel_outbox o on o.sequence = n.sequence
    where o.status = 0 and o.due_at > (select us from clock)
    for update of o skip locked
)
update semel_outbox o set due_at = c.us from behind b cross join clock c where o.sequence = b.sequence
