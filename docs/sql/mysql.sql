-- Semel's schema for MySQL 8 and MariaDB 10.6. Written by the crate (`print` of its migrations); not edited by hand.

-- 1: ledger
-- Keeps: one row per key, and no two keys that differ in one byte ever share one. The primary key is
-- a digest of all five parts; every column that holds text is VARBINARY or BLOB, because each text
-- collation of this server merges something (case, accents, emoji, a trailing space).
-- Times are microseconds since 1970, UTC. sweep_at and attention are generated, so that no statement
-- can forget them: sweep_at is when the sweeper may act, attention is null for healthy records.
CREATE TABLE IF NOT EXISTS semel_record (
    digest        BINARY(32)      NOT NULL,
    kind          TINYINT         NOT NULL,
    tenant        VARBINARY(64)   NOT NULL,
    scope         VARBINARY(128)  NOT NULL,
    principal     VARBINARY(32)   NOT NULL,
    id            VARBINARY(255)  NOT NULL,
    number        BIGINT          NOT NULL,
    fingerprint   VARBINARY(33)   NOT NULL,
    state         TINYINT         NOT NULL,
    operation_id  BINARY(16)      NOT NULL,
    attempt_id    BINARY(16)      NOT NULL,
    attempt       BIGINT          NOT NULL,
    fence         BIGINT          NOT NULL,
    owner         BLOB            NOT NULL,
    lease_until   BIGINT          NULL,
    retry_at      BIGINT          NULL,
    on_crash      TINYINT         NOT NULL,
    keep_us       BIGINT          NOT NULL,
    body          LONGBLOB        NULL,
    content_type  MEDIUMBLOB      NULL,
    reference     VARBINARY(128)  NULL,
    omitted_bytes BIGINT          NULL,
    error         VARBINARY(1024) NULL,
    created_at    BIGINT          NOT NULL,
    updated_at    BIGINT          NOT NULL,
    completed_at  BIGINT          NULL,
    expires_at    BIGINT          NULL,
    sweep_at      BIGINT GENERATED ALWAYS AS (
        CASE state
            WHEN 0 THEN IF(on_crash = 1, lease_until,
                           lease_until + LEAST(keep_us, 9223372036854775807 - GREATEST(lease_until, 0)))
            WHEN 1 THEN expires_at
            WHEN 2 THEN expires_at
        END) STORED,
    attention     TINYINT GENERATED ALWAYS AS (IF(state >= 2, state, NULL)) STORED,
    PRIMARY KEY (digest),
    KEY semel_record_sweep (sweep_at),
    KEY semel_record_open (attention),
    KEY semel_record_reference (reference)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
CREATE TABLE IF NOT EXISTS semel_migration (
    version    INT            NOT NULL PRIMARY KEY,
    checksum   VARBINARY(64)  NOT NULL,
    applied_at BIGINT         NOT NULL
) ENGINE = InnoDB;
INSERT IGNORE INTO semel_migration (version, checksum, applied_at) VALUES
    (1, '62e5bcef70f2a01766451d331ac519630f9f1f50436948fb64bc7c1b97d8cf28', TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6)));
