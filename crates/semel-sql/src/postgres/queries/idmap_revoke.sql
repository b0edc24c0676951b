-- Invariant: a live row becomes revoked and stays; any other row is not touched. The texts are
-- given in the order of the primary key, in which all statements lock rows. The type is part of
-- every requested row, so that a row is looked up by its whole key.
with q as materialized (
    select $1::text as resource_type, q.tenant, q.public_id
    from unnest($2::text[], $3::text[]) as q (tenant, public_id)
)
update semel_id_map m
set status = 0, updated_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint
from q
where m.resource_type = q.resource_type and m.tenant = q.tenant and m.public_id = q.public_id
    and m.status = 1
