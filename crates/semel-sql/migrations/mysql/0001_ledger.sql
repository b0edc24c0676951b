-- Keeps: one row per key, and no two keys that differ in one byte ever share one. The primary key is
-- a digest of all five parts; every column that holds text is VARBINARY or BLOB, because each text
-- collation of this server merges something (case, accents, emoji, a trailing space).
-- Times are microseconds since 1970, UTC. sweep_at, attention and attention_at are generated, so that no
-- statement can forget them: sweep_at is when the sweeper may act, attention is the state of a record that
-- a scheduler or an operator looks after and null for all others (a claim that brings what it takes to run
-- it again is looked after), attention_at is when such a record was last written. It is in the index so that
-- records that a clock ahead of its time wrote are found without reading those that wait for their turn.
-- body, content_type and reference are the answer of a success; until then the retry payload, if any.
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
    attention     TINYINT GENERATED ALWAYS AS (
        IF(state >= 2 OR (state = 0 AND content_type IS NOT NULL), state, NULL)) STORED,
    attention_at  BIGINT GENERATED ALWAYS AS (
        IF(state >= 2 OR (state = 0 AND content_type IS NOT NULL), updated_at, NULL)) STORED,
    PRIMARY KEY (digest),
    KEY semel_record_sweep (sweep_at),
    KEY semel_record_open (attention, scope, retry_at, attention_at),
    KEY semel_record_reference (reference),
    KEY semel_record_tenant (tenant, digest)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Until when this server's clock was believed by those who remove by it, and since when it is not: one
-- row.
CREATE TABLE IF NOT EXISTS semel_clock (
    id      TINYINT NOT NULL,
    trusted BIGINT  NOT NULL,
    suspect BIGINT  NULL,
    PRIMARY KEY (id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

INSERT IGNORE INTO semel_clock (id, trusted)
VALUES (1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6)));
