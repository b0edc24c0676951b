-- Invariant: returns only rows of this type and tenant whose public id is one of the given ones,
-- byte for byte. The lookups are lateral with an offset so that each is a lookup in the primary
-- key: `= any` may be planned as a filter over all rows of a tenant, and the plan may be kept.
select m.public_id, m.internal_id, m.status
from unnest($3::text[]) as q (public_id)
    cross join lateral (
        select m.public_id, m.internal_id, m.status from semel_id_map m
        where m.resource_type = $1 and m.tenant = $2 and m.public_id = q.public_id
        offset 0
    ) m
