-- Invariant: returns for each binding the rows that have its public or its internal id, at most
-- two. The lookups are lateral with an offset, and each states the collation of its own index, so
-- that they stay index lookups whatever the planner believes.
select q.place, m.public_id = q.public_id and m.internal_id = q.internal_id as same, m.status
from unnest($1::text[], $2::text[], $3::text[], $4::bytea[]) with ordinality
        as q (resource_type, tenant, public_id, internal_id, place)
    cross join lateral (
        (select m.public_id, m.internal_id, m.status from semel_id_map m
        where m.resource_type = q.resource_type and m.tenant = q.tenant
            and m.public_id = q.public_id
        offset 0)
        union all
        (select m.public_id, m.internal_id, m.status from semel_id_map m
        where m.internal_id = q.internal_id and m.tenant = q.tenant collate "POSIX"
            and m.resource_type = q.resource_type collate "POSIX" and m.public_id <> q.public_id
        offset 0)
    ) m
