-- Invariant: a row is written whole or not at all, and a row that already has one of its ids is not
-- changed; the rows that were written are returned. No conflict is an error, so that the caller's
-- transaction stays usable. An open transaction that writes one of the ids is waited for. The rows
-- are given in the order of the primary key, in which all statements lock them.
insert into semel_id_map (
    resource_type, tenant, public_id, internal_id, status, created_at, updated_at)
select q.resource_type, q.tenant, q.public_id, q.internal_id, 1, c.us, c.us
from unnest($1::text[], $2::text[], $3::text[], $4::bytea[])
        as q (resource_type, tenant, public_id, internal_id),
    (select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us) c
on conflict do nothing
returning resource_type, tenant, public_id
