-- Invariant: only the judged version is overwritten. A row that another transaction has locked
-- counts as lost and is not waited for: that transaction may take as long as its work. Times that a
-- clock wrote while it was ahead are moved back to count from now: a lease or a backoff then lasts
-- its own length. The claim, its fence and its retry payload stay.
with clock as materialized (
    select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us
),
held as materialized (
    select r.digest, greatest(r.updated_at - c.us, 0) as ahead
    from semel_record r cross join clock c
    where r.digest = $1
        and r.attempt_id = $2 and r.number = $3 -- guard: version
    for update of r skip locked
)
update semel_record r set
    number = r.number + 1, lease_until = r.lease_until - h.ahead, retry_at = r.retry_at - h.ahead,
    expires_at = r.expires_at - h.ahead, sweep_at = r.sweep_at - h.ahead,
    updated_at = least(r.updated_at, c.us),
    -- least() ignores nulls, and a record that has not ended has no such time.
    completed_at = case when r.completed_at is not null then least(r.completed_at, c.us) end
from held h cross join clock c
where r.digest = h.digest
returning r.fence
