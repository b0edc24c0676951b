-- Invariant: reads the rows that wait and those that are dead, $1 of each at most, and never one that
-- was published or discarded.
with clock as materialized (
    select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us
),
waiting as materialized (
    select o.created_at from semel_outbox o where o.due_at is not null
    order by o.due_at, o.sequence limit $1
),
dead as materialized (
    select o.sequence from semel_outbox o where o.due_at is null and o.published_at is null
    order by o.sequence limit $1
)
select (select count(*) from waiting), (select count(*) from dead),
    (select us from clock) - (select min(created_at) from waiting)
