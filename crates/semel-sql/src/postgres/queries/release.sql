-- Invariant: only the live grant removes its record; otherwise as settle.sql.
with held as materialized (
    select r.digest from semel_record r
    where r.digest = $1
        and r.fence = $2 and r.attempt_id = $3 and r.state = 0 -- guard: fence
    for update skip locked
),
done as (
    delete from semel_record r using held h
    where r.digest = h.digest
    returning 1
)
select case
    when exists (select from done) then true
    when exists (
        select from semel_record r
        where r.digest = $1
            and r.fence = $2 and r.attempt_id = $3 and r.state = 0 -- guard: fence
    ) then false
end as done
