-- Invariant: as settle.sql, and only inside the transaction that we began: its mark is gone once
-- the work has committed or rolled back by itself, and then nothing is written.
with unit as materialized (
    select coalesce(current_setting('semel.unit', true), '') = 'open' as open
),
clock as materialized (
    select us, 9223372036854775807 - us as room
    from (select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us) t
),
done as (
    update semel_record r set
        state = $4, number = r.number + 1, lease_until = null,
        retry_at = c.us + case when $5 > c.room then c.room else $5 end,
        body = $6, content_type = $7, reference = $8, omitted_bytes = $9, error = $10,
        updated_at = c.us, completed_at = c.us,
        expires_at = c.us + case when $11 > c.room then c.room else $11 end,
        sweep_at = c.us + case when $11 > c.room then c.room else $11 end
    from clock c cross join unit u
    where r.digest = $1 and u.open
        and r.fence = $2 and r.attempt_id = $3 and r.state = 0 -- guard: fence
    returning r.fence
)
select u.open, d.fence from unit u left join done d on true
