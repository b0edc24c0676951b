-- The id map. One row is one public id and what it stands for, unique both ways inside a type and a
-- tenant. Texts are compared and ordered byte by byte (collate "C"). A revoked row stays, so that its
-- id is never given out again. Times are microseconds since 1970, UTC, by this server's clock.
create table semel_id_map (
    resource_type text     collate "C" not null,
    tenant        text     collate "C" not null,
    public_id     text     collate "C" not null,
    internal_id   bytea    not null check (octet_length(internal_id) = 16),
    -- 1 live, 0 revoked.
    status        smallint not null default 1 check (status in (0, 1)),
    created_at    bigint   not null,
    updated_at    bigint   not null,
    -- The type first: whoever goes through a type goes through all tenants.
    primary key (resource_type, tenant, public_id)
);

-- "POSIX" compares as "C" does, and is not "C": a condition on a column's own collation cannot use this
-- index, and one that says "POSIX" cannot use the primary key. While the table is empty the planner
-- thinks both equally good for anything that names type and tenant, and keeps its plan when it is full.
create unique index semel_id_map_internal on semel_id_map (
    internal_id, tenant collate "POSIX", resource_type collate "POSIX");
