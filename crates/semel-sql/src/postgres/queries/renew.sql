-- Invariant: only the live grant extends its lease, and a row that another transaction has locked
-- keeps no other lease waiting. A lease that has only a row with done = false still belongs to its
-- grant, but another transaction has its record locked.
with req as materialized (
    select * from unnest($1::bytea[], $2::bigint[], $3::bytea[], $4::bigint[]) with ordinality
    as q (digest, fence, attempt_id, lease_us, ord)
),
clock as materialized (
    select us, 9223372036854775807 - us as room
    from (select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us) t
),
mine as materialized (
    select q.ord
    from req q cross join lateral (
        select r.digest from semel_record r
        where r.digest = q.digest
            and r.fence = q.fence and r.attempt_id = q.attempt_id and r.state = 0 -- guard: fence
        offset 0
    ) r
),
held as materialized (
    select q.ord, q.digest,
        case when q.lease_us > c.room then c.room else q.lease_us end as length
    from req q cross join clock c cross join lateral (
        select r.digest from semel_record r
        where r.digest = q.digest
            and r.fence = q.fence and r.attempt_id = q.attempt_id and r.state = 0 -- guard: fence
        for update skip locked
    ) r
),
done as (
    update semel_record r set
        number = r.number + 1, lease_until = c.us + h.length, updated_at = c.us,
        -- Under Hold (1) a lapsed claim is suspended at once, else removed when its keep is over.
        sweep_at = c.us + h.length + case
            when r.on_crash = 1 then 0
            when r.keep_us > c.room - h.length then c.room - h.length
            else r.keep_us end
    from held h cross join clock c
    where r.digest = h.digest
    returning h.ord
)
select ord, true as done from done
union all
select ord, false from mine
