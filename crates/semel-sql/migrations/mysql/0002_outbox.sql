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
