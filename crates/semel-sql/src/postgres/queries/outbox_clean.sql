-- Invariant: removes only rows that were published or discarded at $1 or before: a row that is dead
-- or is to be published again has no published_at. At most $2 rows, and none that another
-- transaction has locked.
with old as materialized (
    select o.sequence from semel_outbox o
    where o.published_at <= $1
    order by o.published_at
    limit $2
    for update skip locked
)
delete from semel_outbox o using old x where o.sequence = x.sequence
