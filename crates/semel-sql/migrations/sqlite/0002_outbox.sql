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
