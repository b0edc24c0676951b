-- Invariant: an event that already exists (the same id and tenant) is not changed, whatever its
-- status. If another open transaction is writing the same event, this one waits until that
-- transaction ends. Sequence numbers follow the order of the list.
insert into semel_outbox (
    id, tenant, aggregatetype, aggregateid, type, source, payload, payload_bytes, content_type, headers,
    occurred_at, due_at, created_at
)
select e.id, e.tenant, e.aggregatetype, e.aggregateid, e.type, e.source, e.payload, e.payload_bytes,
    e.content_type, e.headers, e.occurred_at, c.us, c.us
from unnest(
    $1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bytea[],
    $9::text[], $10::text[], $11::text[]
) with ordinality as e (
    id, tenant, aggregatetype, aggregateid, type, source, payload, payload_bytes, content_type, headers,
    occurred_at, ord
)
cross join (select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us) c
order by e.ord
on conflict (id, tenant) do nothing
