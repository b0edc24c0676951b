-- Invariant: only rows of this type and tenant whose public id is one of those asked for, byte for
-- byte. The lookups are lateral with an offset so that each is one of the primary key: `= any` may be
-- planned as a filter over all of a tenant's rows, and stay so.
select m.public_id, m.internal_id, m.status
from unnest($3::text[]) as q (public_id)
    cross join lateral (
        select m.public_id, m.internal_id, m.status from semel_id_map m
        where m.resource_type = $1 and m.tenant = $2 and m.public_id = q.public_id
        offset 0
    ) m
