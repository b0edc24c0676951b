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

-- 5: procedures
DELIMITER //
-- The ledger's protocol as procedures, for programs in any language that can open a transaction: claim,
-- effects and outcome are one commit, as with `transact`. docs/reference/sql-functions.md says how to call them.
-- * Each call gives one row. There are no defaults: NULL stands for them. lease, keep and all other durations
--   are in milliseconds.
-- * A claim is held by its record, which is not committed before the transaction is (a server of this kind has
--   no lock that ends with its transaction). A rival is told at once and does not wait; only on MySQL at
--   REPEATABLE READ, where a look at a missing row would lock its neighbours, it may wait for a second.
-- * Procedures and no functions: to make a function takes SUPER where the binary log is on. They run with the
--   rights of their definer, so an account needs EXECUTE and no rights on the tables.
-- * Texts are compared as bytes, by their hexadecimal digits: no collation, no mode of the session and no
--   backslash has a part in it.

DROP PROCEDURE IF EXISTS semel_check_text;
CREATE PROCEDURE semel_check_text(IN what VARCHAR(40) CHARACTER SET utf8mb4, IN value LONGTEXT CHARACTER SET utf8mb4, IN most INT)
BEGIN
    DECLARE words VARCHAR(128) CHARACTER SET utf8mb4;
    IF value IS NULL OR HEX(value) REGEXP
        '^(09|0A|0B|0C|0D|20|C285|C2A0|E19A80|E2808[0-9A]|E280A8|E280A9|E280AF|E2819F|E38080)*$' THEN
        SET words = CONCAT('semel: the ', what, ' is blank; give it a value');
    ELSEIF LENGTH(value) > most THEN
        SET words = CONCAT('semel: the ', what, ' has ', LENGTH(value), ' bytes, at most ', most, ' are allowed');
    ELSEIF HEX(value) REGEXP '^(..)*([01].|7F|C2[89].)' THEN
        SET words = CONCAT('semel: the ', what, ' has a control character; remove or encode it');
    END IF;
    IF words IS NOT NULL THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = words;
    END IF;
END;

-- Refuses to go on outside a transaction, where a savepoint is gone as soon as it was set.
DROP PROCEDURE IF EXISTS semel_check_transaction;
CREATE PROCEDURE semel_check_transaction()
BEGIN
    DECLARE EXIT HANDLER FOR 1305
        SIGNAL SQLSTATE '25000' SET MESSAGE_TEXT =
            'semel: a claim was made outside a transaction, where it protects nothing; START TRANSACTION first';
    SAVEPOINT semel_transaction;
    RELEASE SAVEPOINT semel_transaction;
END;

-- Forgets a time that the caller has set for the session: at that time a record could seem to have expired.
DROP PROCEDURE IF EXISTS semel_reset_clock;
CREATE PROCEDURE semel_reset_clock()
BEGIN
    -- A server with secure_timestamp lets nobody set one.
    DECLARE CONTINUE HANDLER FOR 1238, 1290 BEGIN END;
    SET SESSION timestamp = DEFAULT;
END;

-- Notes a claim in the session, and leaves a savepoint that says whether the transaction that made it is still
-- open: it is gone with the transaction, and with it all claims noted before.
DROP PROCEDURE IF EXISTS semel_note_claim;
CREATE PROCEDURE semel_note_claim(IN claim CHAR(96) CHARACTER SET ascii)
BEGIN
    DECLARE CONTINUE HANDLER FOR 1305 SET @semel_claims = x'';
    IF COALESCE(@semel_claims, x'') <> x'' THEN
        RELEASE SAVEPOINT semel_claim;
    END IF;
    SAVEPOINT semel_claim;
    SET @semel_claims = CONCAT(COALESCE(@semel_claims, x''), CAST(claim AS BINARY));
END;

-- Finds out whether this transaction has noted a claim, and forgets it.
DROP PROCEDURE IF EXISTS semel_drop_claim;
CREATE PROCEDURE semel_drop_claim(IN claim LONGTEXT CHARACTER SET utf8mb4, OUT is_ours INT)
BEGIN
    DECLARE CONTINUE HANDLER FOR 1305 SET is_ours = 0;
    SET is_ours = COALESCE(LENGTH(claim) = 96 AND INSTR(@semel_claims, CAST(claim AS BINARY)) > 0, 0);
    IF is_ours = 1 THEN
        RELEASE SAVEPOINT semel_claim;
    END IF;
    IF is_ours = 1 THEN
        SAVEPOINT semel_claim;
        SET @semel_claims = REPLACE(@semel_claims, CAST(claim AS BINARY), x'');
    END IF;
END;

-- Sets a savepoint, and finds out whether it stands: outside a transaction it is gone as soon as it was set.
DROP PROCEDURE IF EXISTS semel_set_mark;
CREATE PROCEDURE semel_set_mark(OUT stands INT)
BEGIN
    DECLARE CONTINUE HANDLER FOR 1305 SET stands = 0;
    SET stands = 1;
    SAVEPOINT semel_mark;
    RELEASE SAVEPOINT semel_mark;
    SAVEPOINT semel_mark;
END;

-- Refuses to go on where the mark is gone: a server may roll a whole transaction back when a lock was not to be
-- had (innodb_rollback_on_timeout), and its caller would commit the second half of it.
DROP PROCEDURE IF EXISTS semel_check_mark;
CREATE PROCEDURE semel_check_mark()
BEGIN
    DECLARE EXIT HANDLER FOR 1305
        SIGNAL SQLSTATE '40001' SET MESSAGE_TEXT =
            'semel: the server has rolled this transaction back, so nothing of it may be committed; begin again';
    RELEASE SAVEPOINT semel_mark;
END;

DROP PROCEDURE IF EXISTS semel_check_span;
CREATE PROCEDURE semel_check_span(IN what VARCHAR(40) CHARACTER SET utf8mb4, IN span_ms BIGINT, IN least_ms BIGINT, IN most_ms BIGINT)
BEGIN
    DECLARE words VARCHAR(128) CHARACTER SET utf8mb4;
    IF span_ms < least_ms OR span_ms > most_ms THEN
        SET words = CONCAT('semel: ', what, ' is ', span_ms, ' ms; it must be at least ', least_ms,
            ' ms and at most ', most_ms, ' ms');
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = words;
    END IF;
END;

-- Sixteen bytes as 26 characters of upper-case Crockford base32.
DROP PROCEDURE IF EXISTS semel_ulid_text;
CREATE PROCEDURE semel_ulid_text(IN bytes BINARY(16), OUT ulid CHAR(26) CHARACTER SET ascii)
BEGIN
    DECLARE x VARCHAR(32) CHARACTER SET ascii DEFAULT HEX(bytes);
    SET x = CONCAT(LPAD(CONV(LEFT(x, 12), 16, 32), 10, '0'), LPAD(CONV(SUBSTRING(x, 13, 10), 16, 32), 8, '0'),
        LPAD(CONV(RIGHT(x, 10), 16, 32), 8, '0'));
    SET ulid = REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(x, 'V', 'Z'), 'U', 'Y'), 'T', 'X'), 'S', 'W'), 'R', 'V'), 'Q', 'T'), 'P', 'S'), 'O', 'R'), 'N', 'Q'), 'M', 'P'), 'L', 'N'), 'K', 'M'), 'J', 'K'), 'I', 'J');
END;

-- The bytes of such a text; NULL for every other spelling.
DROP PROCEDURE IF EXISTS semel_ulid_bytes;
CREATE PROCEDURE semel_ulid_bytes(IN ulid LONGTEXT CHARACTER SET utf8mb4, OUT bytes BINARY(16))
BEGIN
    DECLARE x VARCHAR(26) CHARACTER SET ascii;
    SET bytes = NULL;
    IF LENGTH(ulid) = 26 AND HEX(ulid) REGEXP '^3[0-7](3[0-9]|4[1-8ABDE]|5[0-4]|5[6-9A])*$' THEN
        SET x = ulid;
        SET x = REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(x, 'J', 'I'), 'K', 'J'), 'M', 'K'), 'N', 'L'), 'P', 'M'), 'Q', 'N'), 'R', 'O'), 'S', 'P'), 'T', 'Q'), 'V', 'R'), 'W', 'S'), 'X', 'T'), 'Y', 'U'), 'Z', 'V');
        SET bytes = UNHEX(CONCAT(LPAD(CONV(LEFT(x, 10), 32, 16), 12, '0'),
            LPAD(CONV(SUBSTRING(x, 11, 8), 32, 16), 10, '0'), LPAD(CONV(RIGHT(x, 8), 32, 16), 10, '0')));
    END IF;
END;

-- The stored form of a request's hash: 64 hex digits are a SHA-256 that the caller computed, 66 are the
-- scheme of a fingerprint and its hash. Without one only the key is compared.
DROP PROCEDURE IF EXISTS semel_fingerprint;
CREATE PROCEDURE semel_fingerprint(IN request_hash LONGTEXT CHARACTER SET utf8mb4, OUT fingerprint VARBINARY(33))
BEGIN
    IF COALESCE(LENGTH(request_hash), 0) = 0 THEN
        SET fingerprint = x'';
    ELSEIF LENGTH(request_hash) IN (64, 66) AND HEX(request_hash) REGEXP '^(3[0-9]|[46][1-6])*$' THEN
        SET fingerprint = UNHEX(CONCAT(IF(LENGTH(request_hash) = 64, '04', ''), request_hash));
    ELSE
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT =
            'semel: a request hash must be 64 hex digits (SHA-256)';
    END IF;
END;

-- Judges a request by the stored record, as `judge` of the library does; the order of the checks is part of
-- the contract. The change is what the verdict does to the record: nothing (NULL), 'grant' another attempt of
-- its operation, 'replace' it by a new operation, 'suspend' it as uncertain, or 'redate' its times, which a
-- clock that ran ahead wrote.
DROP PROCEDURE IF EXISTS semel_judge;
CREATE PROCEDURE semel_judge(IN state INT, IN recorded VARBINARY(33), IN attempt BIGINT, IN lease_until BIGINT,
    IN retry_at BIGINT, IN on_crash INT, IN omitted_bytes BIGINT, IN updated_at BIGINT, IN expires_at BIGINT,
    IN fingerprint VARBINARY(33), IN us BIGINT, OUT verdict VARCHAR(16) CHARACTER SET ascii,
    OUT change_to VARCHAR(8) CHARACTER SET ascii, OUT retry_after_ms BIGINT, INOUT error VARBINARY(1024))
BEGIN
    DECLARE remaining BIGINT;
    SET verdict = NULL, change_to = NULL;
    IF state IN (1, 2) AND expires_at <= us THEN
        SET verdict = 'run', change_to = 'replace', error = NULL;
    ELSEIF recorded <> fingerprint AND recorded <> x'' AND fingerprint <> x'' THEN
        SET verdict = 'mismatch', error = NULL;
    ELSE
        SET error = COALESCE(error, 'no error was recorded');
        CASE state
        WHEN 0 THEN
            IF lease_until > us THEN
                -- Never more than the length of the lease: it was written at updated_at.
                SET remaining = LEAST(lease_until - us, lease_until - updated_at), verdict = 'in_progress',
                    change_to = IF(updated_at > us + 1000000, 'redate', NULL), error = NULL;
            ELSEIF on_crash = 0 THEN
                SET verdict = 'run', change_to = 'grant', error = NULL;
            ELSE
                SET verdict = 'uncertain', change_to = 'suspend',
                    error = CONCAT('attempt ', attempt, ' ended without an answer: its lease lapsed');
            END IF;
        WHEN 1 THEN
            SET verdict = 'replay', error = IF(omitted_bytes IS NULL, NULL,
                CONCAT('the outcome had ', omitted_bytes, ' bytes, which is more than was kept'));
        WHEN 2 THEN
            SET remaining = LEAST(retry_at - us, retry_at - updated_at);
            IF retry_at IS NULL THEN
                SET verdict = 'failed';
            ELSEIF remaining > 0 THEN
                SET verdict = 'backoff', change_to = IF(updated_at > us + 1000000, 'redate', NULL);
            ELSE
                SET verdict = 'run', change_to = 'grant', remaining = NULL, error = NULL;
            END IF;
        WHEN 3 THEN
            SET verdict = 'dead';
        WHEN 4 THEN
            SET verdict = 'uncertain';
        WHEN 5 THEN
            SET verdict = 'dead',
                error = LEFT(CONCAT('discarded: ', CONVERT(error USING utf8mb4)), 256);
        ELSE
            SIGNAL SQLSTATE 'XX001' SET MESSAGE_TEXT = 'semel: the record of a key has a state that does not exist';
        END CASE;
    END IF;
    SET retry_after_ms = (remaining + 999) DIV 1000;
END;

-- Looks at a key and, if the verdict is 'run', writes its record: as a claim (goal 0), a success (1) or a
-- failure (2), in one statement. A record that another transaction holds is not waited for.
DROP PROCEDURE IF EXISTS semel_take;
CREATE PROCEDURE semel_take(IN kind INT, IN key_tenant LONGTEXT CHARACTER SET utf8mb4, IN key_scope LONGTEXT CHARACTER SET utf8mb4,
    IN key_id LONGTEXT CHARACTER SET utf8mb4, IN key_principal LONGTEXT CHARACTER SET utf8mb4, IN asked VARBINARY(33),
    IN lease_ms BIGINT, IN keep_ms BIGINT, IN goal INT, IN given_operation BINARY(16), IN given_error VARBINARY(1024),
    IN given_retry_us BIGINT, IN given_reference VARBINARY(128),
    OUT verdict VARCHAR(16) CHARACTER SET ascii, OUT claim CHAR(96) CHARACTER SET ascii, OUT operation BINARY(16), OUT fence_of BIGINT,
    OUT content_type_of VARBINARY(255), OUT body_of LONGBLOB, OUT reference_of VARBINARY(128),
    OUT retry_after_ms BIGINT, OUT error_of VARBINARY(1024))
BEGIN
    DECLARE v_principal VARBINARY(32) DEFAULT IF(key_principal IS NULL, x'',
        UNHEX(SHA2(CONCAT('semel/principal/1', x'00', CAST(key_principal AS BINARY)), 256)));
    DECLARE v_digest BINARY(32);
    DECLARE v_attempt_id BINARY(16) DEFAULT RANDOM_BYTES(16);
    DECLARE v_us, v_number, v_fence, v_lease, v_retry, v_updated, v_created, v_expires, v_omitted, v_attempt, v_ahead BIGINT;
    DECLARE v_until, v_keep, v_next, v_written BIGINT;
    DECLARE v_state, v_crash INT;
    DECLARE v_stored VARBINARY(33);
    DECLARE v_judged BINARY(16);
    DECLARE v_change VARCHAR(8) CHARACTER SET ascii;
    DECLARE v_found, v_held, v_exists, v_stands INT DEFAULT 0;
    /*!80000 DECLARE v_wait BIGINT DEFAULT @@innodb_lock_wait_timeout; */
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_found = 0;
    DECLARE CONTINUE HANDLER FOR 1062 SET v_exists = 1;
    -- Held by another transaction; and, with one snapshot for the whole transaction, changed since.
    DECLARE CONTINUE HANDLER FOR 1205, 3572, 1020 SET v_held = 1;
    /*!80000 DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        SET SESSION innodb_lock_wait_timeout = v_wait;
        RESIGNAL;
    END; */
    CALL semel_check_text('tenant of a key', key_tenant, 64);
    CALL semel_check_text('scope of a key', key_scope, 128);
    CALL semel_check_text('id of a key', key_id, 255);
    CALL semel_reset_clock();
    CALL semel_set_mark(v_stands);
    SET v_digest = UNHEX(SHA2(CONCAT('semel/key/1', x'00', UNHEX(LPAD(HEX(kind), 2, '0')),
        UNHEX(LPAD(HEX(LENGTH(key_tenant)), 8, '0')), CAST(key_tenant AS BINARY),
        UNHEX(LPAD(HEX(LENGTH(key_scope)), 8, '0')), CAST(key_scope AS BINARY),
        UNHEX(LPAD(HEX(LENGTH(v_principal)), 8, '0')), v_principal,
        UNHEX(LPAD(HEX(LENGTH(key_id)), 8, '0')), CAST(key_id AS BINARY)), 256));
    SET operation = COALESCE(given_operation, CONCAT(UNHEX(LPAD(HEX(TIMESTAMPDIFF(MICROSECOND,
        '1970-01-01 00:00:00', UTC_TIMESTAMP(6)) DIV 1000), 12, '0')), RANDOM_BYTES(10)));
    SET v_keep = keep_ms * 1000;
    -- The record as it was last committed, without a lock: most repeats need no more.
    SET v_found = 1;
    SELECT r.state, r.fingerprint, r.attempt, r.lease_until, r.retry_at, r.on_crash, r.omitted_bytes, r.updated_at,
        r.expires_at, r.error, r.attempt_id, r.number, r.fence, r.body, r.content_type, r.reference
    INTO v_state, v_stored, v_attempt, v_lease, v_retry, v_crash, v_omitted, v_updated,
        v_expires, error_of, v_judged, v_number, v_fence, body_of, content_type_of, reference_of
    FROM semel_record r WHERE r.digest = v_digest;
    -- Each server reads what is marked for it. MySQL knows no shorter wait than a second.
    /*!80000 SET SESSION innodb_lock_wait_timeout = 1; */
    -- MySQL alone reads this. At this level a missing row is not locked, and one that is not committed is an error
    -- at once.
    /*!80000 IF v_found = 0 AND @@transaction_isolation = 'READ-COMMITTED' THEN
        SET v_found = 1;
        SELECT r.number INTO v_number FROM semel_record r WHERE r.digest = v_digest FOR UPDATE NOWAIT;
        SET v_exists = v_found, v_found = 0;
    END IF; */
    IF v_found = 0 AND v_held = 0 AND v_exists = 0 THEN
        SET v_us = TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))
        + GREATEST(TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)), 0),
            v_until = v_us + LEAST(lease_ms * 1000, 9223372036854775807 - v_us),
            v_expires = v_us + LEAST(v_keep, 9223372036854775807 - v_us);
        /*M!100600 SET STATEMENT innodb_lock_wait_timeout = 0 FOR */ INSERT INTO semel_record (digest, kind, tenant, scope, principal, id, number, fingerprint, state, operation_id,
            attempt_id, attempt, fence, owner, lease_until, retry_at, on_crash, keep_us, body, content_type,
            reference, omitted_bytes, error, created_at, updated_at, completed_at, expires_at)
        VALUES (v_digest, kind, key_tenant, key_scope, v_principal, key_id, 1, asked, goal, operation,
            v_attempt_id, 1, v_us, LEFT(CONCAT(USER(), ':', CONNECTION_ID(), ':sql'), 255), IF(goal = 0, v_until, NULL),
            v_us + LEAST(given_retry_us, 9223372036854775807 - v_us), 0, v_keep, IF(goal = 1, x'', NULL),
            IF(goal = 1, 'application/octet-stream', NULL), IF(goal = 1, given_reference, NULL), NULL, given_error,
            v_us, v_us, IF(goal = 0, NULL, v_us), IF(goal = 0, NULL, v_expires));
        IF v_held = 0 AND v_exists = 0 THEN
            SET verdict = 'run', fence_of = v_us, retry_after_ms = NULL, error_of = NULL,
                claim = LOWER(CONCAT(HEX(v_digest), HEX(v_attempt_id)));
        END IF;
    END IF;
    IF v_exists = 1 AND v_held = 0 THEN
        -- It was committed after the snapshot of this transaction, so it is read with a lock, which all may have.
        SET v_found = 1;
        /*M!100600 SET STATEMENT innodb_lock_wait_timeout = 0 FOR */
        SELECT r.state, r.fingerprint, r.attempt, r.lease_until, r.retry_at, r.on_crash, r.omitted_bytes, r.updated_at,
            r.expires_at, r.error, r.attempt_id, r.number, r.fence, r.body, r.content_type, r.reference
        INTO v_state, v_stored, v_attempt, v_lease, v_retry, v_crash, v_omitted, v_updated,
            v_expires, error_of, v_judged, v_number, v_fence, body_of, content_type_of, reference_of
        FROM semel_record r WHERE r.digest = v_digest LOCK IN SHARE MODE;
    END IF;
    -- What is written from here on is locked already.
    /*!80000 SET SESSION innodb_lock_wait_timeout = v_wait; */
    IF v_held = 1 OR (verdict IS NULL AND v_found = 0) THEN
        SET verdict = 'in_progress', retry_after_ms = NULL, error_of = NULL, operation = NULL,
            body_of = NULL, content_type_of = NULL, reference_of = NULL;
    ELSEIF verdict IS NULL THEN
        SET v_us = TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))
        + GREATEST(TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)), 0);
        CALL semel_judge(v_state, v_stored, v_attempt, v_lease, v_retry, v_crash, v_omitted, v_updated, v_expires,
            asked, v_us, verdict, v_change, retry_after_ms, error_of);
        SET fence_of = v_fence;
        -- The type is the reference of every record of an event.
        IF HEX(reference_of) <> HEX(given_reference) AND NOT v_change <=> 'replace' THEN
            SET verdict = 'mismatch', v_change = NULL, retry_after_ms = NULL, error_of = NULL;
        END IF;
        IF v_change IS NOT NULL THEN
            SET v_found = 1;
            /*M!100600 SET STATEMENT innodb_lock_wait_timeout = 0 FOR */
            SELECT r.fence, r.created_at, r.operation_id INTO v_fence, v_created, operation FROM semel_record r
                WHERE r.digest = v_digest AND r.attempt_id = v_judged AND r.number = v_number -- guard: version
                FOR UPDATE /*!80000 NOWAIT */;
            -- Outside a transaction the lock is gone again, so that each of these looks at the version as well.
            IF v_held = 1 OR v_found = 0 THEN
                SET v_written = 0;
            ELSEIF v_change = 'suspend' THEN
                UPDATE semel_record SET state = 4, number = number + 1, lease_until = NULL, error = error_of,
                    updated_at = v_us, completed_at = v_us
                WHERE digest = v_digest AND attempt_id = v_judged AND number = v_number;
                SET v_written = ROW_COUNT();
            ELSEIF v_change = 'redate' THEN
                SET v_ahead = v_updated - v_us;
                UPDATE semel_record SET number = number + 1, lease_until = lease_until - v_ahead,
                    retry_at = retry_at - v_ahead, expires_at = expires_at - v_ahead,
                    completed_at = LEAST(completed_at, v_us), updated_at = v_us
                WHERE digest = v_digest AND attempt_id = v_judged AND number = v_number;
                SET v_written = ROW_COUNT();
            ELSE
                IF v_change = 'replace' THEN
                    SET v_next = 1, v_created = v_us, v_attempt = 0,
                        operation = COALESCE(given_operation, CONCAT(UNHEX(LPAD(HEX(v_us DIV 1000), 12, '0')), RANDOM_BYTES(10)));
                ELSE
                    -- A retry without a hash keeps that of the record.
                    SET v_next = v_number + 1, asked = IF(asked = x'', v_stored, asked);
                END IF;
                SET fence_of = GREATEST(v_fence + 1, v_us),
                    v_until = v_us + LEAST(lease_ms * 1000, 9223372036854775807 - v_us),
                    v_expires = v_us + LEAST(v_keep, 9223372036854775807 - v_us);
                -- What it takes to run the operation again stays with a failure.
                UPDATE semel_record SET number = v_next, fingerprint = asked, state = goal,
                    operation_id = operation, attempt_id = v_attempt_id, attempt = v_attempt + 1, fence = fence_of,
                    owner = LEFT(CONCAT(USER(), ':', CONNECTION_ID(), ':sql'), 255), lease_until = IF(goal = 0, v_until, NULL),
                    retry_at = v_us + LEAST(given_retry_us, 9223372036854775807 - v_us), on_crash = 0, keep_us = v_keep,
                    body = CASE goal WHEN 1 THEN x'' WHEN 2 THEN IF(v_change = 'grant', body, NULL) END,
                    content_type = CASE goal WHEN 1 THEN 'application/octet-stream'
                        WHEN 2 THEN IF(v_change = 'grant', content_type, NULL) END,
                    reference = CASE goal WHEN 1 THEN given_reference
                        WHEN 2 THEN IF(v_change = 'grant', reference, NULL) END,
                    omitted_bytes = NULL, error = given_error, created_at = v_created, updated_at = v_us,
                    completed_at = IF(goal = 0, NULL, v_us), expires_at = IF(goal = 0, NULL, v_expires)
                WHERE digest = v_digest AND attempt_id = v_judged AND number = v_number;
                SET v_written = ROW_COUNT(), claim = LOWER(CONCAT(HEX(v_digest), HEX(v_attempt_id)));
            END IF;
            IF v_written <> 1 OR v_held = 1 THEN
                SET verdict = 'in_progress', retry_after_ms = NULL, error_of = NULL, claim = NULL, operation = NULL;
            END IF;
        ELSEIF verdict <> 'mismatch' THEN
            SELECT r.operation_id INTO operation FROM semel_record r WHERE r.digest = v_digest;
        END IF;
    END IF;
    IF NOT verdict <=> 'replay' THEN
        SET body_of = NULL, content_type_of = NULL, reference_of = NULL;
    END IF;
    IF v_stands = 1 THEN
        CALL semel_check_mark();
    END IF;
END;

DROP PROCEDURE IF EXISTS semel_begin;
CREATE PROCEDURE semel_begin(IN tenant LONGTEXT CHARACTER SET utf8mb4, IN operation LONGTEXT CHARACTER SET utf8mb4,
    IN `key` LONGTEXT CHARACTER SET utf8mb4, IN request_hash LONGTEXT CHARACTER SET utf8mb4, IN lease BIGINT, IN keep BIGINT,
    IN principal LONGTEXT CHARACTER SET utf8mb4)
BEGIN
    DECLARE v_asked VARBINARY(33);
    DECLARE v_verdict VARCHAR(16) CHARACTER SET ascii;
    DECLARE v_claim CHAR(96) CHARACTER SET ascii;
    DECLARE v_operation BINARY(16);
    DECLARE v_ulid CHAR(26) CHARACTER SET ascii;
    DECLARE v_fence, v_retry BIGINT;
    DECLARE v_type VARBINARY(255);
    DECLARE v_body LONGBLOB;
    DECLARE v_reference VARBINARY(128);
    DECLARE v_error VARBINARY(1024);
    CALL semel_check_transaction();
    CALL semel_check_span('lease', lease, 100, 86400000);
    CALL semel_check_span('keep', keep, 1, 9223372036854);
    CALL semel_fingerprint(request_hash, v_asked);
    CALL semel_take(1, tenant, operation, `key`, principal, v_asked, COALESCE(lease, 30000), COALESCE(keep, 86400000),
        0, NULL, NULL, NULL, NULL,
        v_verdict, v_claim, v_operation, v_fence, v_type, v_body, v_reference, v_retry, v_error);
    IF v_verdict = 'mismatch' THEN
        SET v_operation = NULL;
    ELSEIF v_verdict = 'run' THEN
        CALL semel_note_claim(v_claim);
    END IF;
    CALL semel_ulid_text(v_operation, v_ulid);
    SELECT v_verdict AS verdict, IF(v_verdict = 'run', v_claim, NULL) AS claim, v_ulid AS operation_id,
        IF(v_verdict IN ('run', 'replay'), v_fence, NULL) AS fence,
        IF(v_verdict = 'replay', CONVERT(v_type USING utf8mb4), NULL) AS content_type,
        IF(v_verdict = 'replay', v_body, NULL) AS body,
        IF(v_verdict = 'replay', CONVERT(v_reference USING utf8mb4), NULL) AS reference,
        v_retry AS retry_after_ms, CONVERT(v_error USING utf8mb4) AS error;
END;

-- Where the claim is lost, or was made in a transaction that has ended, the transaction is rolled back, as after a
-- deadlock.
DROP PROCEDURE IF EXISTS semel_complete;
CREATE PROCEDURE semel_complete(IN claim LONGTEXT CHARACTER SET utf8mb4, IN body LONGBLOB, IN content_type LONGTEXT CHARACTER SET utf8mb4,
    IN reference LONGTEXT CHARACTER SET utf8mb4)
BEGIN
    DECLARE v_us BIGINT;
    DECLARE v_ours INT;
    DECLARE v_body LONGBLOB DEFAULT COALESCE(body, x'');
    DECLARE v_type LONGTEXT CHARACTER SET utf8mb4 DEFAULT COALESCE(content_type, IF(body IS NULL, 'application/octet-stream', 'application/json'));
    DECLARE v_reference LONGTEXT CHARACTER SET utf8mb4 DEFAULT reference;
    DECLARE v_digest BINARY(32) DEFAULT UNHEX(LEFT(claim, 64));
    DECLARE v_attempt_id BINARY(16) DEFAULT UNHEX(SUBSTRING(claim, 65, 32));
    CALL semel_check_transaction();
    CALL semel_check_text('content type', v_type, 255);
    IF v_reference IS NOT NULL THEN
        CALL semel_check_text('reference', v_reference, 128);
    END IF;
    IF LENGTH(v_body) + LENGTH(v_type) > 1048576 THEN
        SIGNAL SQLSTATE '54000' SET MESSAGE_TEXT =
            'semel: the outcome is too large; at most 1048576 bytes are kept: store it elsewhere and keep its address';
    END IF;
    CALL semel_drop_claim(claim, v_ours);
    CALL semel_reset_clock();
    SET v_us = TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))
        + GREATEST(TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)), 0);
    UPDATE semel_record r SET r.number = r.number + 1, r.state = 1, r.lease_until = NULL, r.retry_at = NULL,
        r.body = v_body, r.content_type = v_type, r.reference = v_reference, r.omitted_bytes = NULL, r.error = NULL,
        r.updated_at = v_us, r.completed_at = v_us, r.expires_at = v_us + LEAST(r.keep_us, 9223372036854775807 - v_us)
    WHERE r.digest = v_digest AND r.attempt_id = v_attempt_id AND r.state = 0 AND v_ours = 1; -- guard: claim
    IF ROW_COUNT() <> 1 THEN
        ROLLBACK;
        SIGNAL SQLSTATE '40001' SET MESSAGE_TEXT =
            'semel: the claim is lost, so all was rolled back; begin again: the verdict says what became of the key';
    END IF;
END;

DROP PROCEDURE IF EXISTS semel_fail;
CREATE PROCEDURE semel_fail(IN tenant LONGTEXT CHARACTER SET utf8mb4, IN operation LONGTEXT CHARACTER SET utf8mb4,
    IN `key` LONGTEXT CHARACTER SET utf8mb4, IN request_hash LONGTEXT CHARACTER SET utf8mb4, IN error LONGTEXT CHARACTER SET utf8mb4,
    IN retry_after_ms BIGINT, IN principal LONGTEXT CHARACTER SET utf8mb4, IN operation_id LONGTEXT CHARACTER SET utf8mb4, IN keep BIGINT)
BEGIN
    DECLARE v_asked VARBINARY(33);
    DECLARE v_verdict VARCHAR(16) CHARACTER SET ascii;
    DECLARE v_claim CHAR(96) CHARACTER SET ascii;
    DECLARE v_operation BINARY(16);
    DECLARE v_fence, v_retry BIGINT;
    DECLARE v_type VARBINARY(255);
    DECLARE v_body LONGBLOB;
    DECLARE v_reference VARBINARY(128);
    DECLARE v_error VARBINARY(1024);
    CALL semel_check_span('retry_after_ms', retry_after_ms, 0, 9223372036854);
    CALL semel_check_span('keep', keep, 1, 9223372036854);
    CALL semel_fingerprint(request_hash, v_asked);
    IF operation_id IS NOT NULL THEN
        CALL semel_ulid_bytes(operation_id, v_operation);
        IF v_operation IS NULL THEN
            SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT =
                'semel: an operation id is 26 characters of upper-case Crockford base32';
        END IF;
    END IF;
    CALL semel_take(1, tenant, operation, `key`, principal, v_asked, 30000, COALESCE(keep, 86400000), 2, v_operation,
        LEFT(COALESCE(error, 'the work failed'), 256), retry_after_ms * 1000, NULL,
        v_verdict, v_claim, v_operation, v_fence, v_type, v_body, v_reference, v_retry, v_error);
    SELECT IF(v_verdict = 'run', 'recorded', v_verdict) AS verdict;
END;

DROP PROCEDURE IF EXISTS semel_handle;
CREATE PROCEDURE semel_handle(IN consumer_group LONGTEXT CHARACTER SET utf8mb4, IN tenant LONGTEXT CHARACTER SET utf8mb4,
    IN event_id LONGTEXT CHARACTER SET utf8mb4, IN type LONGTEXT CHARACTER SET utf8mb4, IN source LONGTEXT CHARACTER SET utf8mb4,
    IN keep BIGINT)
BEGIN
    DECLARE v_event, v_operation BINARY(16);
    DECLARE v_ulid CHAR(26) CHARACTER SET ascii;
    DECLARE v_verdict VARCHAR(16) CHARACTER SET ascii;
    DECLARE v_claim CHAR(96) CHARACTER SET ascii;
    DECLARE v_fence, v_retry BIGINT;
    DECLARE v_type VARBINARY(255);
    DECLARE v_body LONGBLOB;
    DECLARE v_reference VARBINARY(128);
    DECLARE v_error VARBINARY(1024);
    CALL semel_check_transaction();
    CALL semel_check_span('keep', keep, 1, 9223372036854);
    CALL semel_check_text('type of an event', type, 128);
    CALL semel_check_text('id of an event', event_id, 255);
    CALL semel_ulid_bytes(event_id, v_event);
    IF source IS NOT NULL THEN
        CALL semel_check_text('source of an event', source, 255);
    ELSEIF v_event IS NULL THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT =
            'semel: the id of this event is no ULID, so it is unique only with its source; pass the source';
    END IF;
    SET v_event = COALESCE(v_event, LEFT(UNHEX(SHA2(CONCAT('semel/foreign-event/1', x'00',
        UNHEX(LPAD(HEX(LENGTH(source)), 16, '0')), CAST(source AS BINARY), CAST(event_id AS BINARY)), 256)), 16));
    CALL semel_ulid_text(v_event, v_ulid);
    CALL semel_take(5, tenant, consumer_group, v_ulid, NULL, IF(source IS NULL, x'',
        CONCAT(x'03', UNHEX(SHA2(CONCAT(CAST(type AS BINARY), x'00', CAST(source AS BINARY)), 256)))),
        30000, COALESCE(keep, 2592000000), 1, NULL, NULL, NULL, type,
        v_verdict, v_claim, v_operation, v_fence, v_type, v_body, v_reference, v_retry, v_error);
    SELECT CASE
        WHEN v_verdict = 'mismatch' THEN 'conflict'
        WHEN v_verdict = 'run' THEN 'run'
        WHEN v_verdict = 'replay' THEN 'done'
        WHEN v_verdict IN ('in_progress', 'backoff') THEN 'in_progress'
        ELSE 'dead' END AS verdict;
END;

DROP PROCEDURE IF EXISTS semel_append;
CREATE PROCEDURE semel_append(IN tenant LONGTEXT CHARACTER SET utf8mb4, IN type LONGTEXT CHARACTER SET utf8mb4, IN payload LONGBLOB,
    IN aggregate_type LONGTEXT CHARACTER SET utf8mb4, IN aggregate_id LONGTEXT CHARACTER SET utf8mb4, IN headers LONGTEXT CHARACTER SET utf8mb4,
    IN id LONGTEXT CHARACTER SET utf8mb4, IN source LONGTEXT CHARACTER SET utf8mb4, IN content_type LONGTEXT CHARACTER SET utf8mb4)
BEGIN
    DECLARE v_bytes BINARY(16);
    DECLARE v_id CHAR(26) CHARACTER SET ascii;
    DECLARE v_tenant LONGTEXT CHARACTER SET utf8mb4 DEFAULT tenant;
    DECLARE v_kind LONGTEXT CHARACTER SET utf8mb4 DEFAULT type;
    DECLARE v_source LONGTEXT CHARACTER SET utf8mb4 DEFAULT COALESCE(source, '/sql');
    DECLARE v_content LONGTEXT CHARACTER SET utf8mb4 DEFAULT COALESCE(content_type, 'application/json');
    DECLARE CONTINUE HANDLER FOR 1062 BEGIN END;
    CALL semel_check_text('tenant of an event', v_tenant, 64);
    CALL semel_check_text('type of an event', v_kind, 128);
    CALL semel_check_text('source of an event', v_source, 255);
    CALL semel_check_text('content type of an event', v_content, 255);
    IF (aggregate_type IS NULL) <> (aggregate_id IS NULL) THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT =
            'semel: an event has both aggregate_type and aggregate_id, or neither';
    ELSEIF aggregate_type IS NOT NULL THEN
        CALL semel_check_text('aggregate type of an event', aggregate_type, 255);
        CALL semel_check_text('aggregate id of an event', aggregate_id, 255);
    END IF;
    CALL semel_reset_clock();
    IF id IS NULL THEN
        SET v_bytes = CONCAT(UNHEX(LPAD(HEX(TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00',
            UTC_TIMESTAMP(6)) DIV 1000), 12, '0')), RANDOM_BYTES(10));
    ELSE
        CALL semel_ulid_bytes(id, v_bytes);
    END IF;
    IF v_bytes IS NULL THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT =
            'semel: the id of an event is 26 characters of upper-case Crockford base32 (a ULID)';
    ELSEIF payload IS NULL OR LENGTH(payload) > 15728640 THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = 'semel: an event has a payload of at most 15728640 bytes';
    ELSEIF v_content = 'application/json' AND NOT JSON_VALID(CONVERT(payload USING utf8mb4)) THEN
        SIGNAL SQLSTATE '22032' SET MESSAGE_TEXT = 'semel: the payload of this event is not JSON';
    ELSEIF headers IS NOT NULL AND (NOT JSON_VALID(headers) OR JSON_TYPE(headers) <> 'OBJECT'
        OR LENGTH(headers) > 16384 OR JSON_LENGTH(headers) > 64) THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT =
            'semel: headers are a JSON object of at most 64 members and 16384 bytes';
    END IF;
    CALL semel_ulid_text(v_bytes, v_id);
    INSERT INTO semel_outbox (id, tenant, aggregatetype, aggregateid, type, source, payload, content_type, headers)
    VALUES (v_id, v_tenant, COALESCE(aggregate_type, v_kind), aggregate_id, v_kind, v_source, payload, v_content,
        IF(JSON_LENGTH(headers) > 0, JSON_OBJECT('headersjson', headers), '{}'));
    SELECT v_id AS event_id;
END;

DROP PROCEDURE IF EXISTS semel_check_id;
CREATE PROCEDURE semel_check_id(IN tenant LONGTEXT CHARACTER SET utf8mb4, IN resource_type LONGTEXT CHARACTER SET utf8mb4,
    IN public_id LONGTEXT CHARACTER SET utf8mb4)
BEGIN
    CALL semel_check_text('tenant of an id', tenant, 64);
    IF COALESCE(HEX(resource_type), '') NOT REGEXP '^(4[1-9A-F]|5[0-9A])(3[0-9]|4[1-9A-F]|5[0-9AF])*$'
        OR LENGTH(resource_type) > 32 THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT =
            'semel: a resource type is a capital and at most 31 capitals, digits and underscores';
    ELSEIF COALESCE(HEX(public_id), '') NOT REGEXP '^(2[1-9A-F]|[3-6].|7[0-9A-E])+$' OR LENGTH(public_id) > 64 THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = 'semel: a public id has 1 to 64 visible ASCII characters';
    END IF;
END;

DROP PROCEDURE IF EXISTS semel_register_id;
CREATE PROCEDURE semel_register_id(IN tenant LONGTEXT CHARACTER SET utf8mb4, IN resource_type LONGTEXT CHARACTER SET utf8mb4,
    IN public_id LONGTEXT CHARACTER SET utf8mb4, IN internal_id LONGTEXT CHARACTER SET utf8mb4)
BEGIN
    DECLARE v_us BIGINT;
    DECLARE v_kind VARBINARY(32);
    DECLARE v_tenant VARBINARY(64);
    DECLARE v_public VARBINARY(64);
    DECLARE v_internal, v_bound BINARY(16);
    DECLARE v_status INT;
    DECLARE v_exists INT DEFAULT 0;
    DECLARE CONTINUE HANDLER FOR 1062 SET v_exists = 1;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_status = NULL;
    CALL semel_check_id(tenant, resource_type, public_id);
    CALL semel_reset_clock();
    SET v_us = TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))
        + GREATEST(TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)), 0);
    SET v_kind = resource_type, v_tenant = tenant, v_public = public_id;
    CALL semel_ulid_bytes(internal_id, v_internal);
    IF v_internal IS NULL AND HEX(REPLACE(internal_id, '-', '')) REGEXP '^(3[0-9]|[46][1-6])*$'
        AND LENGTH(REPLACE(internal_id, '-', '')) = 32 THEN
        SET v_internal = UNHEX(REPLACE(internal_id, '-', ''));
    END IF;
    IF v_internal IS NULL THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = 'semel: an internal id is a ULID (26 characters) or a UUID';
    END IF;
    INSERT INTO semel_id_map (resource_type, tenant, public_id, internal_id, status, created_at, updated_at)
    VALUES (v_kind, v_tenant, v_public, v_internal, 1, v_us, v_us);
    IF v_exists = 1 THEN
        SELECT m.internal_id, m.status INTO v_bound, v_status FROM semel_id_map m
            WHERE m.resource_type = v_kind AND m.tenant = v_tenant AND m.public_id = v_public LOCK IN SHARE MODE;
        IF v_status IS NULL OR v_bound <> v_internal THEN
            SIGNAL SQLSTATE '23000' SET MESSAGE_TEXT =
                'semel: this public id cannot be registered: it, or its internal id, is bound to something else';
        ELSEIF v_status <> 1 THEN
            SIGNAL SQLSTATE '23000' SET MESSAGE_TEXT =
                'semel: this public id was revoked and cannot be registered again; make a new id';
        END IF;
    END IF;
    SELECT 1 - v_exists AS registered;
END;

DROP PROCEDURE IF EXISTS semel_resolve_id;
CREATE PROCEDURE semel_resolve_id(IN tenant LONGTEXT CHARACTER SET utf8mb4, IN resource_type LONGTEXT CHARACTER SET utf8mb4,
    IN public_id LONGTEXT CHARACTER SET utf8mb4)
BEGIN
    DECLARE v_kind VARBINARY(32);
    DECLARE v_tenant VARBINARY(64);
    DECLARE v_public VARBINARY(64);
    DECLARE v_internal BINARY(16);
    DECLARE v_ulid CHAR(26) CHARACTER SET ascii;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_internal = NULL;
    CALL semel_check_id(tenant, resource_type, public_id);
    SET v_kind = resource_type, v_tenant = tenant, v_public = public_id;
    SELECT m.internal_id INTO v_internal FROM semel_id_map m
        WHERE m.resource_type = v_kind AND m.tenant = v_tenant AND m.public_id = v_public AND m.status = 1;
    CALL semel_ulid_text(v_internal, v_ulid);
    SELECT v_ulid AS internal_id;
END;
//
DELIMITER ;
CREATE TABLE IF NOT EXISTS semel_migration (
    version    INT            NOT NULL PRIMARY KEY,
    checksum   VARBINARY(64)  NOT NULL,
    applied_at BIGINT         NOT NULL
) ENGINE = InnoDB;
INSERT IGNORE INTO semel_migration (version, checksum, applied_at) VALUES
    (5, 'a376f19470e150775366a504a19a17dc98d4fbf5c29413201de1a39fd264e8a6', TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6)));
