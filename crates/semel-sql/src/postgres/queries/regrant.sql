-- Invariant: only the judged version is overwritten. A row that another transaction has locked
-- counts as lost and is not waited for: that transaction may take as long as its work. The new
-- fence is above both the previous fence and the clock. If $13 is true, nothing of the old record
-- stays. The retry payload, like everything else, is that of the new claim.
with clock as materialized (
    select us, 9223372036854775807 - us as room
    from (select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us) t
),
held as materialized (
    select r.digest from semel_record r
    where r.digest = $1
        and r.attempt_id = $2 and r.number = $3 -- guard: version
    for update skip locked
)
update semel_record r set
    number = case when $13 then 1 else r.number + 1 end, fingerprint = $4, state = 0,
    operation_id = $5, attempt_id = $6, attempt = $7, fence = greatest(r.fence + 1, c.us),
    owner = $8,
    lease_until = c.us + case when $9 > c.room then c.room else $9 end,
    retry_at = null, on_crash = $10, keep_us = $11,
    body = $14, content_type = $15, reference = $16, omitted_bytes = null, error = null,
    created_at = case when $13 then c.us else r.created_at end, updated_at = c.us,
    completed_at = null, expires_at = null,
    sweep_at = c.us + case when $12 > c.room then c.room else $12 end
from held h cross join clock c
where r.digest = h.digest
returning r.fence
