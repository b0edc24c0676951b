-- Invariant: only the judged version is overwritten. A row that another transaction has locked
-- counts as lost and is not waited for: that transaction may take as long as its work.
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
    state = $4, number = r.number + 1, lease_until = null,
    retry_at = c.us + case when $5 > c.room then c.room else $5 end,
    body = case when $4 = 1 or r.state = 1 then $6 else r.body end,
    content_type = case when $4 = 1 or r.state = 1 then $7 else r.content_type end,
    reference = case when $4 = 1 or r.state = 1 then $8 else r.reference end,
    omitted_bytes = $9, error = $10,
    updated_at = c.us, completed_at = c.us,
    expires_at = c.us + case when $11 > c.room then c.room else $11 end,
    sweep_at = c.us + case when $11 > c.room then c.room else $11 end
from held h cross join clock c
where r.digest = h.digest
returning r.fence
