-- Invariant: only the judged version is overwritten. A row that another transaction has locked
-- counts as lost and is not waited for: that transaction may take as long as its work. The last
-- error and the retry payload stay (a success has no payload: its outcome is removed). Attempts
-- count from zero, and the next one is due now.
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
    state = 2, number = r.number + 1, attempt = 0, lease_until = null, retry_at = c.us,
    body = case when r.state = 1 then null else r.body end,
    content_type = case when r.state = 1 then null else r.content_type end,
    reference = case when r.state = 1 then null else r.reference end,
    omitted_bytes = null,
    updated_at = c.us, completed_at = c.us,
    expires_at = c.us + case when r.keep_us > c.room then c.room else r.keep_us end,
    sweep_at = c.us + case when r.keep_us > c.room then c.room else r.keep_us end
from held h cross join clock c
where r.digest = h.digest
returning r.fence
