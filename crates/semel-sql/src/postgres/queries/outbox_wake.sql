-- Invariant: follows on an update of the same transaction that took rows out of their lanes, $1 the
-- lanes and $2 the rows' numbers: what comes next in each is due, if it was put off. A row that
-- somebody has locked is left: it is looked at again by itself.
with clock as materialized (
    select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us
),
behind as materialized (
    select o.sequence
    from unnest($1::bytea[], $2::bigint[]) as x (lane, sequence) cross join lateral (
        select n.sequence from semel_outbox n where n.lane = x.lane and n.sequence > x.sequence
        order by n.sequence limit 1
    ) n
    join semel_outbox o on o.sequence = n.sequence
    where o.status = 0 and o.due_at > (select us from clock)
    for update of o skip locked
)
update semel_outbox o set due_at = c.us from behind b cross join clock c where o.sequence = b.sequence
