-- Invariant: as release.sql, and only inside the transaction that we began; see settle_in.sql.
with unit as materialized (
    select coalesce(current_setting('semel.unit', true), '') = 'open' as open
),
done as (
    delete from semel_record r using unit u
    where r.digest = $1 and u.open
        and r.fence = $2 and r.attempt_id = $3 and r.state = 0 -- guard: fence
    returning r.fence
)
select u.open, d.fence from unit u left join done d on true
