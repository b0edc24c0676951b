//! The texts of the ledger's statements, by verb and batch size.
//!
//! Every text keeps these invariants. Time is the server's (`UTC_TIMESTAMP(6)`, which does not
//! depend on the session's time zone). Rows are found only by primary key, so that no other row is
//! ever locked. Every write adds one to `number`, so that a matched row also counts as changed,
//! whatever the client's CLIENT_FOUND_ROWS is. Nothing ends or extends a claim without its fence
//! and attempt.

use std::sync::{Arc, OnceLock};

use super::session::Flavour;
use crate::batcher::BATCH;
use crate::row::{KEY, RECORD, without_body};

/// The server's wall clock at the start of the statement, in microseconds since 1970, UTC.
pub(crate) const CLOCK: &str =
    "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))";

/// The same clock at the time a row is filled, not when the statement began. Used only for fences.
///
/// A batch takes time. If all its fences were the time at which it began, another caller could
/// claim and release the key of a late row in between, and the fence granted next would be smaller
/// than that caller's. `SYSDATE` is read again for each row (unless the server was started with
/// `sysdate-is-now`). It is in the session's time zone, so only its distance from `NOW` is used.
/// What remains are the microseconds between filling a row and storing it, in which nothing waits:
/// another caller would have to claim and release in them, two commits and a trip.
const ROW_CLOCK: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6)) \
     + GREATEST(TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)), 0)";

/// Returns the time `span` microseconds from now. A span beyond what the column can hold ends
/// there: it means "for ever". Null stays null.
pub(super) fn after(span: &str) -> String {
    format!("{CLOCK} + LEAST({span}, {} - {CLOCK})", i64::MAX)
}

/// Returns the columns that every read selects.
pub(crate) fn read() -> String {
    format!("digest, {CLOCK} AS us, {RECORD}")
}

/// Returns the columns that listings select: the record and its key.
pub(crate) fn read_with_key() -> String {
    format!("{CLOCK} AS us, {KEY}, {RECORD}")
}

/// Returns the columns of [`read_with_key`] without the bytes of responses and retry payloads, but
/// with their number.
pub(crate) fn outline() -> String {
    let record = without_body(RECORD, "body", "LEFT(body, 0)");
    format!("{CLOCK} AS us, {KEY}, {record}, CAST(OCTET_LENGTH(body) AS SIGNED) AS body_size")
}

/// The statements by batch size, built when they are first needed.
#[derive(Debug)]
pub(crate) struct Texts {
    flavour: Flavour,
    guards: Guards,
    insert: Sized,
    peek: Sized,
    probe: Sized,
    settle: Sized,
    renew: Sized,
}

/// Which guards are enabled. All are, except in tests that show what each is for.
#[derive(Clone, Copy, Debug)]
struct Guards {
    fence: bool,
    version: bool,
}

impl Guards {
    fn of_environment() -> Self {
        #[cfg(feature = "testing")]
        {
            use semel_core::testing::{Guard, sabotaged};
            Self { fence: !sabotaged(Guard::Fence), version: !sabotaged(Guard::Version) }
        }
        #[cfg(not(feature = "testing"))]
        Self { fence: true, version: true }
    }
}

#[derive(Debug)]
struct Sized([OnceLock<Arc<str>>; BATCH]);

impl Sized {
    fn new() -> Self {
        Self([const { OnceLock::new() }; BATCH])
    }

    fn get(&self, count: usize, build: impl FnOnce() -> String) -> Arc<str> {
        Arc::clone(self.0[count - 1].get_or_init(|| build().into()))
    }
}

impl Texts {
    pub(crate) fn new(flavour: Flavour) -> Self {
        Self {
            flavour,
            guards: Guards::of_environment(),
            insert: Sized::new(),
            peek: Sized::new(),
            probe: Sized::new(),
            settle: Sized::new(),
            renew: Sized::new(),
        }
    }

    /// Inserts `count` drafts. On MariaDB an existing row is returned unchanged, and a row that an
    /// open transaction holds is an error at once. On MySQL an existing row is an error, and the
    /// fence of the last row is returned as the insert id.
    pub(crate) fn insert(&self, count: usize) -> Arc<str> {
        self.insert.get(count, || {
            let fence = match self.flavour {
                Flavour::MariaDb => ROW_CLOCK.to_owned(),
                Flavour::MySql => format!("LAST_INSERT_ID({ROW_CLOCK})"),
            };
            let row = format!(
                "(?,?,?,?,?,?,1,?,0,?,?,?,{fence},?,{},NULL,?,?,?,?,?,NULL,NULL,{CLOCK},{CLOCK},\
                 NULL,NULL)",
                after("?")
            );
            let insert = format!(
                "INSERT INTO semel_record ({KEY}, {RECORD}) VALUES {}",
                repeat(&row, count, ",")
            );
            match self.flavour {
                Flavour::MySql => insert,
                Flavour::MariaDb => self.at_once(&format!(
                    "{insert} ON DUPLICATE KEY UPDATE number = number RETURNING {}",
                    read()
                )),
            }
        })
    }

    /// Reads `count` records as they were last committed.
    pub(crate) fn peek(&self, count: usize) -> Arc<str> {
        self.peek.get(count, || select(count))
    }

    /// As `peek`, but fails at once if an open transaction holds one of the keys, whether or not
    /// its row is visible. MySQL only; on a connection of the store, whose isolation level leaves
    /// no gap lock behind.
    pub(crate) fn probe(&self, count: usize) -> Arc<str> {
        self.probe.get(count, || format!("{} FOR SHARE NOWAIT", select(count)))
    }

    /// Settles `count` claims, at least two; fails at once if another transaction holds one of
    /// them. The clock that it wrote is returned as the insert id.
    pub(crate) fn settle(&self, count: usize) -> Arc<str> {
        self.settle.get(count, || {
            let number = format!("CAST({} AS SIGNED)", pick(count));
            let bytes = pick(count);
            // A running claim has no outcome, so a settlement that is no success keeps the retry
            // payload. `state` is already the new one here: a server evaluates SET from left to
            // right.
            let answer = |column: &str| format!("IF(state = 1, {bytes}, {column})");
            let set = settlement(&Settlement {
                state: &number,
                retry_us: &number,
                body: &answer("body"),
                content_type: &answer("content_type"),
                reference: &answer("reference"),
                omitted_bytes: &number,
                error: &bytes,
                keep_us: &number,
            });
            self.many(count, &set)
        })
    }

    /// Extends `count` leases; fails at once if another transaction holds one of the rows.
    pub(crate) fn renew(&self, count: usize) -> Arc<str> {
        self.renew.get(count, || {
            let until = after(&format!("CAST({} AS SIGNED)", pick(count)));
            self.many(count, &format!("lease_until = {until}, updated_at = {CLOCK}"))
        })
    }

    /// Builds one UPDATE of many rows, each with values of its own, which [`pick`] finds by the
    /// digest.
    ///
    /// The rows are locked in the order of the primary key, so that two such statements cannot
    /// deadlock. The digests are sent once for each column: a user variable with the row's position
    /// would be shorter, but MySQL optimises its assignment away, and a join with a derived table
    /// writes every batch to a temporary table on disk.
    fn many(&self, count: usize, set: &str) -> String {
        let list = repeat("?", count, ",");
        let guard = if self.guards.fence {
            let leases = repeat("(?,?,?)", count, ",");
            format!("AND state = 0 AND (digest, fence, attempt_id) IN ({leases})")
        } else {
            let leases = repeat("?", 3 * count, ",");
            format!("AND COALESCE({leases}, 1) IS NOT NULL")
        };
        self.at_once(&format!(
            "UPDATE semel_record FORCE INDEX (PRIMARY) SET number = number + 1, {set} \
             WHERE digest IN ({list}) {guard}"
        ))
    }

    /// Settles one claim; fails at once if another transaction holds the row.
    pub(crate) fn settle_one(&self, inside: Inside, answer: Answer) -> String {
        let set = ended(answer);
        let guard = self.lease_guard(inside);
        self.at_once(&format!(
            "UPDATE semel_record SET number = number + 1, {set} WHERE digest = ?{guard}"
        ))
    }

    /// Removes the record of one claim; fails at once if another transaction holds the row.
    pub(crate) fn remove_one(&self, inside: Inside) -> String {
        let guard = self.lease_guard(inside);
        self.at_once(&format!("DELETE FROM semel_record WHERE digest = ?{guard}"))
    }

    fn lease_guard(&self, inside: Inside) -> String {
        // Without the guard the parameters stay, so that binding is the same.
        let guard = if self.guards.fence {
            " AND fence = ? AND attempt_id = ? AND state = 0"
        } else {
            " AND (? + LENGTH(?) IS NOT NULL)"
        };
        match (inside, self.flavour) {
            // After a COMMIT or a DDL statement of the work, there is no transaction to complete.
            (Inside::Caller, Flavour::MariaDb) => format!("{guard} AND @@in_transaction = 1"),
            (Inside::Caller, Flavour::MySql) | (Inside::Own, _) => guard.to_owned(),
        }
    }

    /// Grants a new claim on the judged version. The new fence is returned as the insert id.
    pub(crate) fn regrant(&self, fresh: bool) -> String {
        let survives = if fresh {
            format!("number = 1, created_at = {CLOCK}")
        } else {
            "number = number + 1".into()
        };
        self.at_once(&format!(
            "UPDATE semel_record SET {survives}, fingerprint = ?, state = 0, operation_id = ?, \
             attempt_id = ?, attempt = ?, fence = LAST_INSERT_ID(GREATEST(fence + 1, {CLOCK})), \
             owner = ?, lease_until = {}, retry_at = NULL, on_crash = ?, keep_us = ?, \
             body = ?, content_type = ?, reference = ?, omitted_bytes = NULL, \
             error = NULL, updated_at = {CLOCK}, completed_at = NULL, expires_at = NULL \
             WHERE digest = ?{}",
            after("?"),
            self.version_guard()
        ))
    }

    /// Ends the judged version, without its holder's lease.
    pub(crate) fn end(&self, answer: Answer) -> String {
        self.at_once(&format!(
            "UPDATE semel_record SET number = number + 1, fence = LAST_INSERT_ID(fence), {} \
             WHERE digest = ?{}",
            ended(answer),
            self.version_guard()
        ))
    }

    /// Makes the judged version due for another attempt.
    pub(crate) fn redrive(&self) -> String {
        self.at_once(&format!(
            "UPDATE semel_record SET number = number + 1, fence = LAST_INSERT_ID(fence), \
             {RETRY_PAYLOAD_STAYS}, state = 2, attempt = 0, lease_until = NULL, retry_at = {CLOCK}, \
             updated_at = {CLOCK}, completed_at = {CLOCK}, expires_at = {} WHERE digest = ?{}",
            after("keep_us"),
            self.version_guard()
        ))
    }

    /// Moves the times of the judged version back to count from now, if a clock that was ahead
    /// wrote them. SET works from left to right, so `updated_at` is last.
    pub(crate) fn redate(&self) -> String {
        let ahead = format!("GREATEST(updated_at - {CLOCK}, 0)");
        self.at_once(&format!(
            "UPDATE semel_record SET number = number + 1, fence = LAST_INSERT_ID(fence), \
             lease_until = lease_until - {ahead}, retry_at = retry_at - {ahead}, \
             expires_at = expires_at - {ahead}, completed_at = LEAST(completed_at, {CLOCK}), \
             updated_at = LEAST(updated_at, {CLOCK}) WHERE digest = ?{}",
            self.version_guard()
        ))
    }

    /// Removes the judged version. MariaDB returns its fence; MySQL keeps it as the insert id.
    pub(crate) fn remove(&self) -> String {
        let guard = self.version_guard();
        match self.flavour {
            Flavour::MariaDb => self.at_once(&format!(
                "DELETE FROM semel_record WHERE digest = ?{guard} RETURNING fence"
            )),
            Flavour::MySql => format!(
                "DELETE FROM semel_record WHERE digest = ?{guard} AND LAST_INSERT_ID(fence) >= 0"
            ),
        }
    }

    fn version_guard(&self) -> &'static str {
        if self.guards.version {
            " AND number = ? AND attempt_id = ?"
        } else {
            " AND (? + LENGTH(?) IS NOT NULL)"
        }
    }

    /// Returns the statement in a form that does not wait for a row that an open transaction holds.
    /// MySQL has no such form: there it waits for the session's lock wait, one second on the
    /// store's sessions.
    fn at_once(&self, statement: &str) -> String {
        at_once(self.flavour, statement)
    }
}

pub(crate) fn at_once(flavour: Flavour, statement: &str) -> String {
    match flavour {
        Flavour::MariaDb => format!("SET STATEMENT innodb_lock_wait_timeout = 0 FOR {statement}"),
        Flavour::MySql => statement.to_owned(),
    }
}

/// The transaction in which a statement runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inside {
    /// The statement is a transaction by itself.
    Own,
    /// The caller's transaction.
    Caller,
}

/// Whether a settlement has an outcome, which replaces a retry payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A success: body, content type, reference and the size of an omitted body are bound.
    Given,
    /// No outcome: none of them is bound.
    None,
}

/// Removes an outcome and keeps a retry payload: both are in the same columns, and only a success
/// (`state` 1) has an outcome there. Must come before `state` is set, since a server evaluates SET
/// from left to right.
const RETRY_PAYLOAD_STAYS: &str = "body = IF(state = 1, NULL, body), \
     content_type = IF(state = 1, NULL, content_type), \
     reference = IF(state = 1, NULL, reference), omitted_bytes = NULL";

/// The expressions for the values of the settlements of a batch.
struct Settlement<'a> {
    state: &'a str,
    retry_us: &'a str,
    body: &'a str,
    content_type: &'a str,
    reference: &'a str,
    omitted_bytes: &'a str,
    error: &'a str,
    keep_us: &'a str,
}

/// Returns the assignments that settle one record, with `?` for the values in the order of
/// `bind_ending`.
fn ended(answer: Answer) -> String {
    let outcome = match answer {
        Answer::Given => "body = ?, content_type = ?, reference = ?, omitted_bytes = ?",
        Answer::None => RETRY_PAYLOAD_STAYS,
    };
    format!(
        "{outcome}, state = ?, lease_until = NULL, retry_at = {}, error = ?, \
         updated_at = {CLOCK}, completed_at = {CLOCK}, expires_at = {}",
        after("?"),
        after("?")
    )
}

/// Returns the assignments that settle each record of a batch. The parameters are in the order of
/// the fields.
fn settlement(values: &Settlement<'_>) -> String {
    let Settlement {
        state,
        retry_us,
        body,
        content_type,
        reference,
        omitted_bytes,
        error,
        keep_us,
    } = values;
    format!(
        "state = {state}, lease_until = NULL, retry_at = {}, body = {body}, \
         content_type = {content_type}, reference = {reference}, omitted_bytes = {omitted_bytes}, \
         error = {error}, updated_at = LAST_INSERT_ID({CLOCK}), completed_at = {CLOCK}, \
         expires_at = {}",
        after(retry_us),
        after(keep_us)
    )
}

/// Returns an expression for the row's own value: first the digests are bound, then the values in
/// the same order.
fn pick(count: usize) -> String {
    let list = repeat("?", count, ",");
    format!("ELT(FIELD(digest, {list}), {list})")
}

fn select(count: usize) -> String {
    let list = repeat("?", count, ",");
    format!("SELECT {} FROM semel_record WHERE digest IN ({list})", read())
}

pub(crate) fn repeat(text: &str, count: usize, between: &str) -> String {
    vec![text; count].join(between)
}
