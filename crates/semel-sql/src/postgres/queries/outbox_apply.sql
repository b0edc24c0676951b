-- Invariant: follows on a lock of the same transaction, which chose the rows by their status; no row
-- that is leased comes here. $3 is the reason with which they are discarded, as settled as if they were
-- published now; where it is null they are pending again, due now, tries counted from zero, in the partition
-- that comes with them.
update semel_outbox o set
    status = case when $3::text is null then 0 else 5 end,
    attempts = case when $3 is null then 0 else o.attempts end,
    token = null,
    due_at = case when $3 is null then c.us end,
    published_at = case when $3 is not null then c.us end,
    partition_key = case when $3 is null then x.partition_key end,
    error = coalesce($3, o.error)
from unnest($1::bigint[], $2::bytea[]) as x (sequence, partition_key)
cross join (select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us) c
where o.sequence = x.sequence
