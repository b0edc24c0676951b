-- Invariant: as idmap_put, for a binding of an operation that begins in this transaction, whose ids no other
-- row has: one that does have them fails the transaction.
insert into semel_id_map (
    resource_type, tenant, public_id, internal_id, status, created_at, updated_at)
values (
    $1, $2, $3, $4, 1,
    (extract(epoch from statement_timestamp()) * 1000000)::bigint,
    (extract(epoch from statement_timestamp()) * 1000000)::bigint
)
