-- Rows that other programs write: id, tenant, aggregatetype, aggregateid, type and payload are all that an
-- INSERT must give. Every other column has a default, or is derived here:
-- * payload is text or bytes, and stays what it is.
-- * occurred_at is '' where the sender gave no time: then it is created_at.
-- * partition_key is derived from the row, so that rows of every program share their partitions from the
--   moment of the INSERT; statements write in_partition instead, which is 0 once the row keeps no other of
--   its partition waiting. An event about nothing in particular (aggregateid is NULL or '') has no partition.
-- The defaults of times use julianday, which every version of SQLite has that can read this table.
-- SQLite can neither add a default nor change a type, so the rows move into a new table.
CREATE TABLE semel_outbox_new (
    sequence      INTEGER PRIMARY KEY AUTOINCREMENT,
    id            TEXT    NOT NULL,
    tenant        TEXT    NOT NULL,
    aggregatetype TEXT    NOT NULL,
    aggregateid   TEXT,
    type          TEXT    NOT NULL,
    source        TEXT    NOT NULL DEFAULT '/outbox',
    content_type  TEXT    NOT NULL DEFAULT 'application/json',
    headers       TEXT    NOT NULL DEFAULT '{}',
    occurred_at   TEXT    NOT NULL DEFAULT '',
    status        INTEGER NOT NULL DEFAULT 0,
    attempts      INTEGER NOT NULL DEFAULT 0,
    due_at        INTEGER DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000),
    rest_us       INTEGER NOT NULL DEFAULT 0,
    in_partition  INTEGER NOT NULL DEFAULT 1,
    partition_key TEXT    GENERATED ALWAYS AS (CASE WHEN in_partition = 1 AND aggregateid <> ''
        THEN tenant || char(31) || aggregatetype || char(31) || aggregateid END) VIRTUAL,
    token         BLOB,
    error         TEXT,
    created_at    INTEGER NOT NULL
        DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000),
    published_at  INTEGER,
    payload       ANY     NOT NULL
) STRICT;

INSERT INTO semel_outbox_new (
    sequence, id, tenant, aggregatetype, aggregateid, type, source, content_type, headers, occurred_at,
    status, attempts, due_at, rest_us, in_partition, token, error, created_at, published_at, payload
)
SELECT sequence, id, tenant, aggregatetype, aggregateid, type, source, content_type, headers, occurred_at,
    status, attempts, due_at, rest_us, partition_key IS NOT NULL, token, error, created_at, published_at, payload
FROM semel_outbox;

-- No number is used twice, also if the rows with the highest numbers were removed.
DELETE FROM sqlite_sequence WHERE name = 'semel_outbox_new';
INSERT INTO sqlite_sequence (name, seq) SELECT 'semel_outbox_new', seq FROM sqlite_sequence WHERE name = 'semel_outbox';

DROP TABLE semel_outbox;
ALTER TABLE semel_outbox_new RENAME TO semel_outbox;

CREATE UNIQUE INDEX semel_outbox_event ON semel_outbox (id, tenant);
CREATE INDEX semel_outbox_due ON semel_outbox (due_at, sequence) WHERE due_at IS NOT NULL;
CREATE INDEX semel_outbox_partition ON semel_outbox (partition_key, sequence) WHERE partition_key IS NOT NULL;
CREATE INDEX semel_outbox_published ON semel_outbox (published_at) WHERE published_at IS NOT NULL;
CREATE INDEX semel_outbox_dead ON semel_outbox (sequence) WHERE status = 4;
