-- Invariant: only the live grant settles its claim. A row that another transaction has locked is
-- not waited for. Only a success replaces the retry payload; any other settlement keeps it. Returns
-- true if the claim was settled, false if the record still belongs to this grant but is locked,
-- null if the claim is lost.
with clock as materialized (
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
    from held h cross join clock c
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
