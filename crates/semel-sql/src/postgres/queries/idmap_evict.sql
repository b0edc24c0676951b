-- Invariant: of the rows that have a binding's internal id, those with another public id are
-- removed.
delete from semel_id_map m
using unnest($1::text[], $2::text[], $3::text[], $4::bytea[])
    as q (resource_type, tenant, public_id, internal_id)
where m.internal_id = q.internal_id and m.tenant = q.tenant collate "POSIX"
    and m.resource_type = q.resource_type collate "POSIX" and m.public_id <> q.public_id
