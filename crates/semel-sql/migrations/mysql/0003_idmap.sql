-- The id map. One row is one public id and what it stands for, unique both ways inside a type and a
-- tenant. Texts are VARBINARY: the collations that MySQL and MariaDB share merge at least a trailing
-- space (utf8mb4_bin too). A revoked row stays, so that its id is never given out again. status is 1
-- live, 0 revoked. Times are microseconds since 1970, UTC, by this server's clock.
-- The type comes first in the keys: whoever goes through a type goes through all tenants.
CREATE TABLE IF NOT EXISTS semel_id_map (
    resource_type VARBINARY(32) NOT NULL,
    tenant        VARBINARY(64) NOT NULL,
    public_id     VARBINARY(64) NOT NULL,
    internal_id   BINARY(16)    NOT NULL,
    status        TINYINT       NOT NULL DEFAULT 1,
    created_at    BIGINT        NOT NULL,
    updated_at    BIGINT        NOT NULL,
    PRIMARY KEY (resource_type, tenant, public_id),
    UNIQUE KEY semel_id_map_internal (resource_type, tenant, internal_id),
    CONSTRAINT semel_id_map_status CHECK (status IN (0, 1))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
