-- Invariant: as settle.sql and release.sql (state null), for each of many different keys by itself.
-- A row that another transaction has locked is left out rather than waited for: its claim is
-- answered "busy" (the result has a row for it, but none with done = true), and the others are
-- settled. So no two batches can deadlock.
with req as materialized (
    select * from unnest(
        $1::bytea[], $2::bigint[], $3::bytea[], $4::smallint[], $5::bigint[], $6::bytea[],
        $7::text[], $8::text[], $9::bigint[], $10::text[], $11::bigint[])
    as q (digest, fence, attempt_id, state, retry_us, body,
        content_type, reference, omitted_bytes, error, keep_us)
),
clock as materialized (
    select us, 9223372036854775807 - us as room
    from (select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us) t
),
mine as materialized (
    select q.digest as wanted
    from req q cross join lateral (
        select r.digest from semel_record r
        where r.digest = q.digest
            and r.fence = q.fence and r.attempt_id = q.attempt_id and r.state = 0 -- guard: fence
        offset 0
    ) r
),
held as materialized (
    select q.*
    from req q cross join lateral (
        select r.digest from semel_record r
        where r.digest = q.digest
            and r.fence = q.fence and r.attempt_id = q.attempt_id and r.state = 0 -- guard: fence
        for update skip locked
    ) r
),
gone as (
    delete from semel_record r using held h
    where r.digest = h.digest and h.state is null
    returning r.digest
),
done as (
    update semel_record r set
        state = h.state, number = r.number + 1, lease_until = null,
        retry_at = c.us + case when h.retry_us > c.room then c.room else h.retry_us end,
        body = case when h.state = 1 or r.state = 1 then h.body else r.body end,
        content_type = case when h.state = 1 or r.state = 1 then h.content_type else r.content_type end,
        reference = case when h.state = 1 or r.state = 1 then h.reference else r.reference end,
        omitted_bytes = h.omitted_bytes, error = h.error,
        updated_at = c.us, completed_at = c.us,
        expires_at = c.us + case when h.keep_us > c.room then c.room else h.keep_us end,
        sweep_at = c.us + case when h.keep_us > c.room then c.room else h.keep_us end
    from held h cross join clock c
    where r.digest = h.digest and h.state is not null
    returning r.digest
)
select digest, true as done from gone
union all
select digest, true from done
union all
select wanted, false from mine
