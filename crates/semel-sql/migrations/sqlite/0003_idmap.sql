-- The id map. One row is one public id and what it stands for, unique both ways inside a type and a
-- tenant, compared byte by byte (BINARY). A revoked row stays, so that its id is never given out
-- again. status is 1 live, 0 revoked. Times are microseconds since 1970 by the store's clock.
-- The type comes first in the keys: whoever goes through a type goes through all tenants.
CREATE TABLE semel_id_map (
    resource_type TEXT    NOT NULL,
    tenant        TEXT    NOT NULL,
    public_id     TEXT    NOT NULL,
    internal_id   BLOB    NOT NULL CHECK (length(internal_id) = 16),
    status        INTEGER NOT NULL DEFAULT 1 CHECK (status IN (0, 1)),
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    PRIMARY KEY (resource_type, tenant, public_id)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX semel_id_map_internal ON semel_id_map (resource_type, tenant, internal_id);
