-- Semel's schema for SQLite. Written by the crate (`print` of its migrations); not edited by hand.

-- 1: ledger
-- One row a key, and no key twice: the digest is made of every byte of the key, is compared byte by
-- byte (BINARY), and cannot be NULL. STRICT, so that no value is stored as another type than ours.
-- Times and spans are microseconds; sweep_at is when the sweeper may act, NULL where it never may.
-- content_type, reference and body are the answer of a success; until then the retry payload, if there is one.
CREATE TABLE semel_record (
    digest        BLOB    NOT NULL PRIMARY KEY CHECK (length(digest) = 32),
    kind          INTEGER NOT NULL,
    tenant        TEXT    NOT NULL,
    scope         TEXT    NOT NULL,
    principal     BLOB    NOT NULL,
    id            TEXT    NOT NULL,
    number        INTEGER NOT NULL,
    fingerprint   BLOB    NOT NULL,
    state         INTEGER NOT NULL,
    operation_id  BLOB    NOT NULL,
    attempt_id    BLOB    NOT NULL,
    attempt       INTEGER NOT NULL,
    fence         INTEGER NOT NULL,
    owner         TEXT    NOT NULL,
    lease_until   INTEGER,
    retry_at      INTEGER,
    on_crash      INTEGER NOT NULL,
    keep_us       INTEGER NOT NULL,
    content_type  TEXT,
    reference     TEXT,
    omitted_bytes INTEGER,
    error         TEXT,
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    completed_at  INTEGER,
    expires_at    INTEGER,
    sweep_at      INTEGER,
    body          BLOB
) STRICT;

-- The sweeper walks this one in order and never the table.
CREATE INDEX semel_record_sweep ON semel_record (sweep_at) WHERE sweep_at IS NOT NULL;

-- What operators look for: failed, dead, uncertain and discarded records, and what is due; and the claims
-- that bring what it takes to run them again, among which the lapsed ones are looked for.
CREATE INDEX semel_record_open ON semel_record (state, scope, retry_at)
    WHERE state IN (2, 3, 4, 5) OR (state = 0 AND content_type IS NOT NULL);

-- "Which command made this?"
CREATE INDEX semel_record_reference ON semel_record (reference) WHERE reference IS NOT NULL;

-- A tenant's records, a page at a time.
CREATE INDEX semel_record_tenant ON semel_record (tenant, digest);

-- Until when the clock was believed by those who remove by it, and since when it is not: one row. probe is
-- written, and emptied again, to see whether there is room on the disk.
CREATE TABLE semel_clock (
    id      INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    trusted INTEGER NOT NULL,
    suspect INTEGER,
    probe   BLOB
) STRICT;
CREATE TABLE IF NOT EXISTS semel_migration (version INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER))) STRICT;
INSERT INTO semel_migration (version, name, checksum) VALUES (1, 'ledger', '9b411418b7079b16f42a68c570863bd75b83dc572ce1f38749844fa89f521391');

-- 2: outbox
-- The outbox. One row is one event, written in the transaction that it tells about. AUTOINCREMENT, so
-- that no number is used twice; id and tenant name the event, compared byte by byte.
-- id, aggregatetype, aggregateid, type and payload are named as Debezium's outbox event router wants
-- them in every database of ours: an event about nothing in particular has its type for an
-- aggregatetype, and no aggregateid. headers holds the attributes of the CloudEvent that have no
-- column, as JSON. occurred_at is the sender's clock, for people; all other times are microseconds
-- since 1970 by the store's clock.
-- status is 0 pending, 1 leased, 2 published, 3 failed, 4 dead, 5 discarded. due_at is when the row may
-- be claimed: the next try, or the end of the lease; token is the lease, the condition of every mark.
-- rest_us is how long the lease or the backoff is: no row waits for longer, whatever a clock said.
-- What is NULL is in nobody's way: due_at is NULL once nobody is to claim the row (published, dead,
-- discarded), partition_key is NULL once the row keeps no other of its partition waiting. published_at is when
-- the row was settled, by a broker or by an operator who discarded it: what cleaning goes by.
CREATE TABLE semel_outbox (
    sequence      INTEGER PRIMARY KEY AUTOINCREMENT,
    id            TEXT    NOT NULL,
    tenant        TEXT    NOT NULL,
    aggregatetype TEXT    NOT NULL,
    aggregateid   TEXT,
    type          TEXT    NOT NULL,
    source        TEXT    NOT NULL,
    content_type  TEXT    NOT NULL,
    headers       TEXT    NOT NULL,
    occurred_at   TEXT    NOT NULL,
    status        INTEGER NOT NULL,
    attempts      INTEGER NOT NULL,
    due_at        INTEGER,
    rest_us       INTEGER NOT NULL DEFAULT 0,
    partition_key BLOB,
    token         BLOB,
    error         TEXT,
    created_at    INTEGER NOT NULL,
    published_at  INTEGER,
    payload       BLOB    NOT NULL
) STRICT;

CREATE UNIQUE INDEX semel_outbox_event ON semel_outbox (id, tenant);

-- Claims walk this one in order, so that it matters to nobody how much was published.
CREATE INDEX semel_outbox_due ON semel_outbox (due_at, sequence) WHERE due_at IS NOT NULL;

-- "Does anything of its partition come before it?"
CREATE INDEX semel_outbox_partition ON semel_outbox (partition_key, sequence) WHERE partition_key IS NOT NULL;

CREATE INDEX semel_outbox_published ON semel_outbox (published_at) WHERE published_at IS NOT NULL;

CREATE INDEX semel_outbox_dead ON semel_outbox (sequence) WHERE status = 4;
CREATE TABLE IF NOT EXISTS semel_migration (version INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER))) STRICT;
INSERT INTO semel_migration (version, name, checksum) VALUES (2, 'outbox', '1fecab9934aa5f4a50c1eb659f41b9d651bc02bfc42ce31a3b4e2a848d92b1c0');

-- 3: id map
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
CREATE TABLE IF NOT EXISTS semel_migration (version INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER))) STRICT;
INSERT INTO semel_migration (version, name, checksum) VALUES (3, 'id map', '1a2dfe6b1d379383e2a80f3eff440e5407c319cfc4d796260c3ae6776a139108');

-- 4: outbox written by others
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
CREATE TABLE IF NOT EXISTS semel_migration (version INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER))) STRICT;
INSERT INTO semel_migration (version, name, checksum) VALUES (4, 'outbox written by others', '508e9d83d08d7d0aa8951a9e95a4356850ff814a1a0074219a4b93a97843bc67');
