-- Invariant: the same transaction has selected the rows by their status and locked them; none of
-- them is leased. If $2 is not null, it is the reason for which the rows are discarded, and they
-- count as settled now. If it is null, the rows are pending again and due now, with attempts
-- counted from zero, in their partitions.
update semel_outbox o set
    status = case when $2::text is null then 0 else 5 end,
    attempts = case when $2 is null then 0 else o.attempts end,
    token = null,
    due_at = case when $2 is null then c.us end,
    published_at = case when $2 is not null then c.us end,
    in_partition = case when $2 is null then 1 else 0 end,
    error = coalesce($2, o.error)
from unnest($1::bigint[]) as x (sequence)
cross join (select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us) c
where o.sequence = x.sequence
