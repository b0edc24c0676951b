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
