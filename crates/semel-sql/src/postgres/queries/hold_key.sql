-- Invariant: a transaction that holds a key is the only one that can insert its record, as in
-- open.sql, and is marked with the key and the ledger's table. The mark is gone once the
-- transaction has ended, however it ended, and it fits no other table that the work's search_path
-- may lead to. Runs before find_key.sql as a separate statement, so that find_key.sql sees what the
-- last holder of the lock committed.
select set_config(
    'semel.claim',
    case when pg_try_advisory_xact_lock($2::bigint)
        then encode($1::bytea, 'hex') || '@' || 'semel_record'::regclass::oid::text
        else ''
    end,
    true
) as mark
