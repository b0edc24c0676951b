-- Invariant: as settle.sql, and only inside the transaction that was marked when it began, when the
-- claim was opened in it, or when it was adopted: the mark is gone once that transaction has ended,
-- however it ended, and then nothing is written. A row that this transaction wrote itself cannot be
-- locked by another, so it needs no lock.
with unit as materialized (
    select coalesce(current_setting('semel.unit', true), '') = 'open' as open
),
clock as materialized (
    select us, 9223372036854775807 - us as room
    from (select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us) t
),
held as materialized (
    select r.digest from semel_record r
    where r.digest = $1
        and r.fence = $2 and r.attempt_id = $3 and r.state = 0 -- guard: fence
    for update skip locked
),
done as (
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
    from clock c
    where r.digest = $1 and (select u.open from unit u)
        and r.fence = $2 and r.attempt_id = $3 and r.state = 0 -- guard: fence
        and (r.xmin = pg_current_xact_id()::xid or exists (select from held))
    returning 1
)
select (select u.open from unit u) as open, case
    when exists (select from done) then true
    when exists (
        select from semel_record r
        where r.digest = $1
            and r.fence = $2 and r.attempt_id = $3 and r.state = 0 -- guard: fence
    ) then false
end as done
