-- Semel's schema for PostgreSQL. Written by the crate (`print` of its migrations); not edited by hand.

-- 1: ledger
-- The ledger. One row is one operation; the primary key is the only thing that correctness rests
-- on. Times are microseconds since 1970, UTC, by this server's clock. Text is compared by nobody:
-- identity is the digest, which no collation can merge.
create table semel_record (
    digest        bytea    not null primary key,
    kind          smallint not null,
    tenant        text     not null,
    scope         text     not null,
    principal     bytea    not null,
    id            text     not null,
    number        bigint   not null,
    fingerprint   bytea    not null,
    state         smallint not null,
    operation_id  bytea    not null,
    attempt_id    bytea    not null,
    attempt       integer  not null,
    fence         bigint   not null,
    owner         text     not null,
    lease_until   bigint,
    retry_at      bigint,
    on_crash      smallint not null,
    keep_us       bigint   not null,
    body          bytea,
    content_type  text,
    reference     text,
    omitted_bytes bigint,
    error         text,
    created_at    bigint   not null,
    updated_at    bigint   not null,
    completed_at  bigint,
    expires_at    bigint,
    -- From when the sweeper may act; null where only a person may.
    sweep_at      bigint
) with (
    -- The sweeper's leavings are to be collected long before they are a fifth of a large table.
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05
);

create index semel_record_sweep on semel_record (sweep_at) where sweep_at is not null;

-- For operators: what failed, is due, was given up or waits for a decision.
create index semel_record_open on semel_record (state, scope, retry_at) where state in (2, 3, 4);

create index semel_record_reference on semel_record (reference) where reference is not null;
create table if not exists semel_migration (
    version    integer not null primary key,
    name       text    not null,
    checksum   text    not null,
    applied_at bigint  not null
);
insert into semel_migration (version, name, checksum, applied_at)
values (1, 'ledger', 'c2490b2c1c959a7ddd3fb9bf19287631de7b85e98a9d569ed837376f70d55118', (extract(epoch from clock_timestamp()) * 1000000)::bigint);
