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
    -- The answer of a success; until then the retry payload, if the claim brought one.
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

-- What failed, is due, was given up, waits for a decision or was discarded, and the claims that bring
-- what it takes to run them again: those are looked through for lapsed ones.
create index semel_record_open on semel_record (state, scope, retry_at)
    where state in (2, 3, 4, 5) or (state = 0 and content_type is not null);

create index semel_record_reference on semel_record (reference) where reference is not null;

-- A tenant's records, a page at a time.
create index semel_record_tenant on semel_record (tenant, digest);

-- Until when this server's clock was believed by those who remove by it, and since when it is not.
create table semel_clock (
    id      smallint not null primary key check (id = 1),
    trusted bigint   not null,
    suspect bigint
);

insert into semel_clock (id, trusted)
values (1, (extract(epoch from clock_timestamp()) * 1000000)::bigint);
