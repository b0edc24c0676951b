-- Invariant: no record that can still be needed is removed, and no live lease is touched. $3 is a
-- trusted reading of this server's clock, which may have jumped since. sweep_at is checked again
-- under the row's lock, so a claim that was renewed or taken over meanwhile is not touched; rows
-- that another transaction has locked are left for the next sweep. A lapsed claim that must not
-- simply be run again (on_crash is not Rerun, 0) becomes Uncertain, so that its possible effect is
-- not forgotten.
with clock as materialized (
    select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us
),
due as materialized (
    select r.digest, r.state = 0 and r.on_crash <> 0 as crashed
    from semel_record r
    where r.sweep_at <= $3
    order by r.sweep_at
    limit $1
    for update skip locked
),
removed as (
    delete from semel_record r using due d
    where r.digest = d.digest and not d.crashed
    returning 1
),
suspended as (
    update semel_record r set
        state = 4, number = r.number + 1, lease_until = null, retry_at = null, error = $2,
        updated_at = c.us, completed_at = c.us, expires_at = null, sweep_at = null
    from due d cross join clock c
    where r.digest = d.digest and d.crashed
    returning 1
)
select (select count(*) from removed) as removed, (select count(*) from suspended) as suspended
