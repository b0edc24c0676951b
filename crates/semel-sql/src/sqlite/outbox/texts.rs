//! The statements of the outbox. Each is documented with its parameters.
//!
//! They run in the writer's transaction, and there is no other writer: what a part of a statement
//! has read stays true until the statement ends.

/// The columns of an event, in the order in which they are read. Lists select no payload.
macro_rules! columns {
    ($payload:literal) => {
        concat!(
            "id, tenant, aggregatetype, aggregateid, type, source, ",
            $payload,
            ", content_type, headers, occurred_at"
        )
    };
}

/// Inserts events: the beginning of the statement. [`VALUES`] follows for each event, then
/// [`UNLESS_THERE`].
pub(super) const APPEND: &str =
    concat!("INSERT INTO semel_outbox (", columns!("payload"), ", due_at, created_at) VALUES ");

/// The values of one event: its columns, its due time, and the time of its append.
pub(super) const VALUES: &str = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";

/// The end of an append: an event that already exists is not changed, whatever its status.
pub(super) const UNLESS_THERE: &str = " ON CONFLICT (id, tenant) DO NOTHING";

/// Leases rows: ?1 now, ?2 the largest number of rows, ?3 the end of the lease, ?4 its token, ?5
/// the number of due rows to scan, ?6 the largest number of payload bytes (but always one row,
/// whatever its size), ?7 the length of the lease, ?8 the largest payload of an event: a larger one is not
/// read.
///
/// `heads` are due rows without an earlier row in their partition, the longest due first. If the
/// first of them has a lapsed lease, it is claimed alone (it may be the row that crashes relays);
/// otherwise rows with a lapsed lease wait for their turn. If the claim is not full, the rows that
/// follow the heads are claimed too (`trail`), in order and without a gap, one more row of each
/// partition before two more of any. A pending row is claimed this way whatever its due time: it
/// may have been put off because it waits for others, and the due time of a pending row means
/// nothing else. A failed row rests, and the rows behind it rest with it.
pub(super) const CLAIM: &str = concat!(
    "WITH heads AS MATERIALIZED (\
        SELECT sequence, partition_key, status, row_number() OVER (ORDER BY due_at, sequence) AS turn FROM (\
            SELECT o.sequence, o.partition_key, o.status, o.due_at \
            FROM (SELECT o.sequence, o.partition_key, o.status, o.due_at \
                FROM semel_outbox AS o INDEXED BY semel_outbox_due \
                WHERE o.due_at <= ?1 /* claimed by state */ \
                ORDER BY o.due_at, o.sequence LIMIT ?5) AS o \
            WHERE o.partition_key IS NULL OR NOT EXISTS (\
                SELECT 1 FROM semel_outbox AS p INDEXED BY semel_outbox_partition \
                WHERE p.partition_key = o.partition_key AND p.sequence < o.sequence) \
            ORDER BY o.due_at, o.sequence LIMIT ?2)\
    ), fit AS MATERIALIZED (\
        SELECT h.sequence, h.partition_key, h.status, h.turn FROM heads AS h, heads AS f \
        WHERE f.turn = 1 AND CASE f.status WHEN 1 THEN h.turn = 1 ELSE h.status <> 1 END\
    ), trail AS MATERIALIZED (\
        SELECT t.sequence, row_number() OVER run AS place, \
            min(t.status = 0 OR t.status = 3 AND t.due_at <= ?1) OVER run AS ready \
        FROM fit AS h JOIN semel_outbox AS t ON t.sequence IN (\
            SELECT n.sequence FROM semel_outbox AS n INDEXED BY semel_outbox_partition \
            WHERE n.partition_key = h.partition_key AND n.sequence > h.sequence ORDER BY n.sequence \
            LIMIT (SELECT max(?2 - count(*), 0) FROM fit)) \
        WHERE h.status <> 1 \
        WINDOW run AS (PARTITION BY h.sequence ORDER BY t.sequence)\
    ), chosen AS MATERIALIZED (\
        SELECT sequence, 0 AS place, turn FROM fit UNION ALL SELECT sequence, place, 0 FROM (\
            SELECT sequence, place FROM trail WHERE ready ORDER BY place, sequence \
            LIMIT (SELECT max(?2 - count(*), 0) FROM fit))\
    ), weighed AS MATERIALIZED (\
        SELECT c.sequence, row_number() OVER turns AS turn, sum(octet_length(s.payload)) OVER turns AS bytes \
        FROM chosen AS c CROSS JOIN semel_outbox AS s ON s.sequence = c.sequence \
        WINDOW turns AS (ORDER BY c.place, c.turn, c.sequence ROWS UNBOUNDED PRECEDING)\
    ) UPDATE semel_outbox SET status = 1, attempts = attempts + 1, due_at = ?3, token = ?4, rest_us = ?7 \
    WHERE sequence IN (SELECT sequence FROM weighed WHERE turn = 1 OR bytes <= ?6) \
    RETURNING sequence, attempts, created_at, ",
    // Another program may have written any amount of bytes.
    columns!("CASE WHEN octet_length(payload) <= ?8 THEN CAST(payload AS BLOB) END")
);

/// Counts the rows that are due at ?1, up to ?2.
pub(super) const DUE: &str = "SELECT count(*) FROM (SELECT 1 FROM semel_outbox \
    INDEXED BY semel_outbox_due WHERE due_at <= ?1 LIMIT ?2)";

/// Puts off, of the first ?2 rows that are due at ?1, those that wait behind others of their
/// partition: for as long as they have waited so far, from ?5 to ?6. A statement that removes the
/// row before one from the partition makes the row due again. A failed row has its backoff in the
/// same column, so it cannot be woken, and is put off from ?3 to ?4.
pub(super) const PUT_OFF: &str = "UPDATE semel_outbox SET due_at = ?1 + CASE status \
        WHEN 3 THEN min(max(?1 - created_at, ?3), ?4) \
        ELSE min(max(?1 - created_at, ?5), ?6) END \
    WHERE sequence IN (SELECT w.sequence FROM (\
        SELECT d.sequence, d.partition_key, d.status FROM semel_outbox AS d INDEXED BY semel_outbox_due \
        WHERE d.due_at <= ?1 ORDER BY d.due_at, d.sequence LIMIT ?2) AS w \
        WHERE w.partition_key IS NOT NULL AND w.status IN (0, 3) AND EXISTS (\
            SELECT 1 FROM semel_outbox AS p INDEXED BY semel_outbox_partition \
            WHERE p.partition_key = w.partition_key AND p.sequence < w.sequence))";

/// Makes the rows of ?1 (JSON of numbers) due at ?2.
pub(super) const WAKE: &str =
    "UPDATE semel_outbox SET due_at = ?2 WHERE sequence IN (SELECT value FROM json_each(?1))";

/// A subquery that returns marks as rows: ?1 is a JSON array with one array per mark, of sequence,
/// token, disposition, due time, error, time of publishing, and length of the backoff.
macro_rules! marks {
    () => {
        "(SELECT m.key AS place, m.value ->> 0 AS sequence, unhex(m.value ->> 1) AS token, \
         m.value ->> 2 AS disposition, m.value ->> 3 AS due_at, m.value ->> 4 AS error, \
         m.value ->> 5 AS published_at, m.value ->> 6 AS rest_us FROM json_each(?1) AS m)"
    };
}

/// Selects the positions of the marks whose lease still holds its row. If the row leaves its
/// partition, also selects the partition's next row, if that was put off beyond ?2.
pub(super) const HELD: &str = concat!(
    "SELECT m.place, CASE WHEN m.disposition IN (0, 2) THEN (\
        SELECT n.sequence FROM (\
            SELECT b.sequence, b.status, b.due_at FROM semel_outbox AS b INDEXED BY semel_outbox_partition \
            WHERE b.partition_key = o.partition_key AND b.sequence > o.sequence ORDER BY b.sequence LIMIT 1) AS n \
        WHERE n.status = 0 AND n.due_at > ?2) END FROM ",
    marks!(),
    " AS m CROSS JOIN semel_outbox AS o \
     ON o.sequence = m.sequence AND o.token = m.token AND o.status = 1"
);

/// Writes the marks whose lease still holds its row. Dispositions: 0 published, 1 retry, 2 dead, 3
/// dead and its partition waits, 4 as if it had not been claimed, 5 the same but later.
pub(super) const MARK: &str = concat!(
    "UPDATE semel_outbox AS o SET \
        status = CASE m.disposition WHEN 0 THEN 2 WHEN 1 THEN 3 WHEN 5 THEN 3 \
            WHEN 4 THEN CASE WHEN o.attempts > 1 THEN 3 ELSE 0 END ELSE 4 END, \
        attempts = CASE WHEN m.disposition IN (4, 5) THEN max(o.attempts - 1, 0) ELSE o.attempts END, \
        token = NULL, due_at = m.due_at, rest_us = coalesce(m.rest_us, o.rest_us), \
        in_partition = CASE WHEN m.disposition IN (0, 2) THEN 0 ELSE o.in_partition END, \
        error = coalesce(m.error, o.error), \
        published_at = coalesce(m.published_at, o.published_at) \
     FROM ",
    marks!(),
    " AS m WHERE o.sequence = m.sequence AND o.token = m.token AND o.status = 1"
);

/// Selects the rows that a verb changes, after a sequence number; conditions follow.
pub(super) const CHOOSE: &str = "SELECT sequence FROM semel_outbox WHERE sequence > ";

/// Selects the rows that follow those of ?1 (JSON of numbers) in their partitions, if they were put off
/// beyond ?2.
pub(super) const BEHIND: &str = "SELECT n.sequence FROM json_each(?1) AS c CROSS JOIN semel_outbox AS o \
    ON o.sequence = c.value CROSS JOIN semel_outbox AS n \
    ON n.sequence = (SELECT b.sequence FROM semel_outbox AS b INDEXED BY semel_outbox_partition \
        WHERE b.partition_key = o.partition_key AND b.sequence > o.sequence \
        ORDER BY b.sequence LIMIT 1) \
    WHERE n.status = 0 AND n.due_at > ?2";

/// Discards the selected rows for the reason ?2 at ?3, and removes them from their partitions.
pub(super) const DISCARD: &str = "UPDATE semel_outbox SET status = 5, token = NULL, due_at = NULL, in_partition = 0, error = ?2, \
     published_at = ?3 WHERE sequence IN (SELECT value FROM json_each(?1))";

/// Makes the selected rows pending again, due at ?2, with attempts counted from zero, in their
/// partitions.
pub(super) const REVIVE: &str = "UPDATE semel_outbox SET status = 0, attempts = 0, token = NULL, due_at = ?2, in_partition = 1, \
     published_at = NULL WHERE sequence IN (SELECT value FROM json_each(?1))";

/// Removes at most ?2 rows that were published or discarded at ?1 or before: a row that is dead or
/// is to be published again has no `published_at`.
pub(super) const CLEAN: &str = "DELETE FROM semel_outbox WHERE sequence IN (\
    SELECT sequence FROM semel_outbox INDEXED BY semel_outbox_published \
    WHERE published_at <= ?1 ORDER BY published_at LIMIT ?2)";

/// Corrects at most ?4 rows whose due time was written by a clock that was ahead: they would wait
/// for longer than their lease or backoff, and for longer than rows are put off (?2, with a grace
/// of ?3). They are due after their lease or backoff, counted from now (?1).
pub(super) const REDATE: &str = "UPDATE semel_outbox SET due_at = ?1 + rest_us WHERE sequence IN (\
    SELECT sequence FROM semel_outbox INDEXED BY semel_outbox_due \
    WHERE due_at > ?1 + ?2 AND due_at - ?1 - ?3 > rest_us ORDER BY due_at, sequence LIMIT ?4)";

/// Counts the rows that wait and those that are dead, at most ?1 of each, and selects the time at
/// which the oldest waiting row was appended.
pub(super) const BACKLOG: &str = "SELECT count(*), min(created_at), (SELECT count(*) FROM (\
        SELECT 1 FROM semel_outbox INDEXED BY semel_outbox_dead WHERE status = 4 LIMIT ?1)) \
    FROM (SELECT created_at FROM semel_outbox INDEXED BY semel_outbox_due \
        WHERE due_at IS NOT NULL ORDER BY due_at, sequence LIMIT ?1)";

/// Selects rows for operators, after a sequence number; conditions follow. SQLite knows the length
/// of a payload without reading it.
pub(super) const LIST: &str = concat!(
    "SELECT sequence, status, attempts, error, created_at, due_at, published_at, octet_length(payload), ",
    columns!("x''"),
    " FROM semel_outbox WHERE sequence > "
);

/// Counts rows; conditions, a limit and a closing bracket follow.
pub(super) const COUNT: &str = "SELECT count(*) FROM (SELECT 1 FROM semel_outbox WHERE TRUE";

#[cfg(test)]
mod tests {
    use sqlx::sqlite::SqliteConnectOptions;
    use sqlx::{AssertSqlSafe, ConnectOptions, Executor, Row};

    use super::*;
    use crate::sqlite::MIGRATIONS;

    /// Returns SQLite's query plan for a statement.
    async fn plan(text: &str) -> Vec<String> {
        let options = SqliteConnectOptions::new().in_memory(true);
        let mut connection = options.connect().await.unwrap();
        for migration in MIGRATIONS {
            connection.execute(migration.sql).await.unwrap();
        }
        let explain = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {text}"));
        let rows = connection.fetch_all(explain).await.unwrap();
        rows.iter().map(|row| row.get("detail")).collect()
    }

    #[tokio::test]
    async fn a_claim_scans_due_rows_and_never_the_table() {
        let plan = plan(CLAIM).await;
        let whole = plan.join("\n");
        assert!(whole.contains("USING INDEX semel_outbox_due (due_at<?)"), "{whole}");
        assert!(
            whole.contains("INDEX semel_outbox_partition (partition_key=? AND sequence<?)"),
            "{whole}"
        );
        assert!(
            whole.contains("INDEX semel_outbox_partition (partition_key=? AND sequence>?)"),
            "{whole}"
        );
        let scanned = plan.iter().filter_map(|line| line.strip_prefix("SCAN "));
        let tables: Vec<_> = scanned
            .filter(|name| matches!(*name, "semel_outbox" | "o" | "t" | "n" | "p"))
            .collect();
        // `o` is the window, a subquery with a limit.
        assert!(tables.iter().all(|name| *name == "o"), "{whole}");
    }

    #[tokio::test]
    async fn marks_verbs_and_cleaning_find_their_rows_by_number() {
        for text in [HELD, MARK, DISCARD, REVIVE, CLEAN, PUT_OFF, WAKE, BEHIND] {
            let whole = plan(text).await.join("\n");
            assert!(whole.contains("USING INTEGER PRIMARY KEY (rowid=?)"), "{whole}");
            assert!(!whole.contains("SCAN o\n") && !whole.contains("SCAN semel_outbox"), "{whole}");
        }
    }
}
