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
