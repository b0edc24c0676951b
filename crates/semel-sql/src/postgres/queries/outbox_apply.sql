-- Invariant: the same transaction has selected the rows by their status and locked them; none of
-- them is leased. If $3 is not null, it is the reason for which the rows are discarded, and they
-- count as settled now. If it is null, the rows are pending again and due now, with attempts
-- counted from zero, in the given partitions.
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
