-- Invariant: as outbox_append.sql, for a single event, which most appends are: without the arrays,
-- which cost about as much as the row.
insert into semel_outbox (
    id, tenant, aggregatetype, aggregateid, type, source, payload, payload_bytes, content_type, headers,
    occurred_at, due_at, created_at
)
values (
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11,
    (extract(epoch from statement_timestamp()) * 1000000)::bigint,
    (extract(epoch from statement_timestamp()) * 1000000)::bigint
)
on conflict (id, tenant) do nothing
