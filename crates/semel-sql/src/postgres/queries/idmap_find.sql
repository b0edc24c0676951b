-- Invariant: only rows of this type and tenant whose public id is one of those asked for, byte for
-- byte; the primary key is walked once for each.
select m.public_id, m.internal_id, m.status from semel_id_map m
where m.resource_type = $1 and m.tenant = $2 and m.public_id = any($3::text[])
