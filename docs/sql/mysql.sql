-- Semel's schema for MySQL 8 and MariaDB 10.6. Written by the crate (`print` of its migrations); not edited by hand.

-- 1: ledger
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
CREATE TABLE IF NOT EXISTS semel_migration (
    version    INT            NOT NULL PRIMARY KEY,
    checksum   VARBINARY(64)  NOT NULL,
    applied_at BIGINT         NOT NULL
) ENGINE = InnoDB;
INSERT IGNORE INTO semel_migration (version, checksum, applied_at) VALUES
    (1, '4a9bf532ed5033fa96125a0f4b022cfb3962ddc4e6e93bad0d73cb2ce208c829', TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6)));

-- 2: outbox
-- The outbox. One row is one event, written in the transaction that it tells about. sequence grows in
-- the order of append and no number is used twice; id and tenant name the event, compared byte by
-- byte (the id is ASCII without spaces, so that its collation merges nothing).
-- id, aggregatetype, aggregateid, type and payload are what Debezium's outbox event router reads, as
-- they are, which is why they are text: an event about nothing in particular has its type for an
-- aggregatetype, and no aggregateid. headers holds the attributes of the CloudEvent that have no
-- column, as JSON. occurred_at is the sender's clock, for people; all other times are microseconds
-- since 1970, UTC, by this server's clock.
-- status is 0 pending, 1 leased, 2 published, 3 failed, 4 dead, 5 discarded. due_at is when the row may
-- be claimed: the next try, or the end of the lease; token is the lease, the condition of every mark.
-- rest_us is how long the lease or the backoff is: no row waits for longer, whatever a clock said.
-- What is null is in nobody's way: due_at is null once nobody is to claim the row (published, dead,
-- discarded), partition_key is null once the row keeps no other of its partition waiting. published_at is when
-- the row was settled, by a broker or by an operator who discarded it: what cleaning goes by. dead is generated,
-- so that no statement can forget it.
CREATE TABLE IF NOT EXISTS semel_outbox (
    sequence      BIGINT         NOT NULL AUTO_INCREMENT,
    id            CHAR(26)       CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    tenant        VARBINARY(64)  NOT NULL,
    aggregatetype VARCHAR(255)   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    aggregateid   VARCHAR(255)   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    type          VARCHAR(128)   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    source        VARCHAR(255)   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    payload       LONGBLOB       NOT NULL,
    content_type  VARCHAR(255)   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    headers       MEDIUMTEXT     CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    occurred_at   VARCHAR(40)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    status        TINYINT        NOT NULL,
    attempts      BIGINT         NOT NULL,
    due_at        BIGINT         NULL,
    rest_us       BIGINT         NOT NULL DEFAULT 0,
    partition_key BINARY(16)     NULL,
    token         BINARY(16)     NULL,
    error         VARCHAR(1024)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    created_at    BIGINT         NOT NULL,
    published_at  BIGINT         NULL,
    dead          TINYINT GENERATED ALWAYS AS (IF(status = 4, 1, NULL)) STORED,
    PRIMARY KEY (sequence),
    UNIQUE KEY semel_outbox_event (id, tenant),
    KEY semel_outbox_due (due_at, sequence),
    KEY semel_outbox_partition (partition_key, sequence),
    KEY semel_outbox_published (published_at),
    KEY semel_outbox_dead (dead, sequence)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
CREATE TABLE IF NOT EXISTS semel_migration (
    version    INT            NOT NULL PRIMARY KEY,
    checksum   VARBINARY(64)  NOT NULL,
    applied_at BIGINT         NOT NULL
) ENGINE = InnoDB;
INSERT IGNORE INTO semel_migration (version, checksum, applied_at) VALUES
    (2, '844f2506b84421dd7dbc45f384be34967c34a85597912bca765b476e7fe6281c', TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6)));

-- 3: id map
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
CREATE TABLE IF NOT EXISTS semel_migration (
    version    INT            NOT NULL PRIMARY KEY,
    checksum   VARBINARY(64)  NOT NULL,
    applied_at BIGINT         NOT NULL
) ENGINE = InnoDB;
INSERT IGNORE INTO semel_migration (version, checksum, applied_at) VALUES
    (3, '2c1be41ed8fc10fc842dfebf0839facb50f56c9e6cebd2a0919383f26406d403', TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6)));

-- 4: outbox written by others
-- Rows that other programs write: id, tenant, aggregatetype, aggregateid, type and payload are all that an
-- INSERT must give. Every other column has a default, or is derived here:
-- * id takes a UUID as well. Columns of text are longer than an event allows: a session that is not strict
--   cuts what does not fit, and what was cut must not pass for whole.
-- * occurred_at is '' where the sender gave no time: then it is created_at.
-- * partition_key is derived from the row, so that rows of every program share their partitions from the
--   moment of the INSERT; statements write in_partition instead, which is 0 once the row keeps no other of
--   its partition waiting. An event about nothing in particular (aggregateid is null or '') has no
--   partition. Texts that are too long for an event are cut in it: they must fit into the index.
-- Each statement may run again after a crash. MySQL cannot add a column only if it is missing.
SET @semel_alter = IF(
    (SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE()
        AND table_name = 'semel_outbox' AND column_name = 'in_partition') = 0,
    'ALTER TABLE semel_outbox ADD COLUMN in_partition TINYINT NOT NULL DEFAULT 1 AFTER rest_us',
    'DO 0');
PREPARE semel_alter FROM @semel_alter;
EXECUTE semel_alter;
DEALLOCATE PREPARE semel_alter;
UPDATE semel_outbox SET in_partition = 0 WHERE partition_key IS NULL;
ALTER TABLE semel_outbox
    DROP KEY semel_outbox_partition,
    DROP COLUMN partition_key,
    MODIFY COLUMN id            VARCHAR(64)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    MODIFY COLUMN tenant        VARBINARY(80) NOT NULL,
    MODIFY COLUMN aggregatetype VARCHAR(300)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    MODIFY COLUMN aggregateid   VARCHAR(300)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    MODIFY COLUMN type          VARCHAR(160)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    MODIFY COLUMN source        VARCHAR(300)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT '/outbox',
    MODIFY COLUMN content_type  VARCHAR(300)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL
        DEFAULT 'application/json',
    MODIFY COLUMN headers       MEDIUMTEXT    CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT ('{}'),
    MODIFY COLUMN occurred_at   VARCHAR(40)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    MODIFY COLUMN status        TINYINT       NOT NULL DEFAULT 0,
    MODIFY COLUMN attempts      BIGINT        NOT NULL DEFAULT 0,
    MODIFY COLUMN due_at        BIGINT        NULL
        DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))),
    MODIFY COLUMN created_at    BIGINT        NOT NULL
        DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))),
    ADD COLUMN partition_key VARBINARY(2106) GENERATED ALWAYS AS (IF(in_partition = 1 AND aggregateid <> '',
        CONCAT(LEFT(tenant, 64), x'1f', LEFT(aggregatetype, 255), x'1f', LEFT(aggregateid, 255)), NULL)) STORED
        AFTER in_partition,
    ADD KEY semel_outbox_partition (partition_key, sequence);
CREATE TABLE IF NOT EXISTS semel_migration (
    version    INT            NOT NULL PRIMARY KEY,
    checksum   VARBINARY(64)  NOT NULL,
    applied_at BIGINT         NOT NULL
) ENGINE = InnoDB;
INSERT IGNORE INTO semel_migration (version, checksum, applied_at) VALUES
    (4, 'cad9917987f5276a10a4ce645b34f5da3ef1cf9b6b8df3613d42f238a654b00c', TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6)));
