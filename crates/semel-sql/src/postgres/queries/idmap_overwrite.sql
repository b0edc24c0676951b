-- Invariant: afterwards each binding is stored and live, in place of any other binding of its
-- public id; a row that is right already is not touched. If a concurrent transaction took an
-- internal id after it was evicted, this statement fails, and the transaction is run again.
insert into semel_id_map as m (
    resource_type, tenant, public_id, internal_id, status, created_at, updated_at)
select q.resource_type, q.tenant, q.public_id, q.internal_id, 1, c.us, c.us
from unnest($1::text[], $2::text[], $3::text[], $4::bytea[])
        as q (resource_type, tenant, public_id, internal_id),
    (select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us) c
on conflict (resource_type, tenant, public_id) do update
set internal_id = excluded.internal_id, status = 1, updated_at = excluded.updated_at
where m.internal_id <> excluded.internal_id or m.status <> 1
