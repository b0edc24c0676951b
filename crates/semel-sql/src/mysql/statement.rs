//! The texts of our statements, by verb and batch size.
//!
//! Invariants that every text keeps: time is the server's (`UTC_TIMESTAMP(6)`, which no session time
//! zone moves); rows are found by primary key alone, so that no other row is ever locked; every
//! write adds one to `number`, so that a row that matched also changed, whatever the client's
//! CLIENT_FOUND_ROWS says; nothing ends or extends a claim without its fence and attempt.

use std::sync::{Arc, OnceLock};

use super::session::Flavour;
use crate::batcher::BATCH;
use crate::row::{KEY, RECORD, without_body};

/// The server's wall clock at the start of the statement, in microseconds since 1970, UTC.
pub(crate) const CLOCK: &str =
    "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))";

/// The same clock when the row at hand is filled, not when the statement began; for fences alone.
///
/// A batch takes its time. Were all its fences the moment at which it began, a rival could claim and
/// give back the key of a late row in between, and the fence granted next would be smaller than the
/// rival's. `SYSDATE` is read anew for each row (a server started with `sysdate-is-now` loses this).
/// It is in the session's time zone, so only its distance from `NOW` is used. What is left are the
/// microseconds between filling a row and placing it, in which nothing waits: a rival would have to
/// claim and to give back in them, two commits and a trip.
const ROW_CLOCK: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6)) \
     + GREATEST(TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)), 0)";

/// The moment `span` microseconds from now. A span that reaches beyond what the column holds ends
/// there: it stands for "for ever". Null stays null.
pub(super) fn after(span: &str) -> String {
    format!("{CLOCK} + LEAST({span}, {} - {CLOCK})", i64::MAX)
}

/// Returns what every read selects.
pub(crate) fn read() -> String {
    format!("digest, {CLOCK} AS us, {RECORD}")
}

/// Returns what listings select: the record and its key.
pub(crate) fn read_with_key() -> String {
    format!("{CLOCK} AS us, {KEY}, {RECORD}")
}

/// Returns the same without the bytes of responses and retry payloads, and their number.
pub(crate) fn outline() -> String {
    let record = without_body(RECORD, "body", "LEFT(body, 0)");
    format!("{CLOCK} AS us, {KEY}, {record}, CAST(OCTET_LENGTH(body) AS SIGNED) AS body_size")
}

/// Statements by batch size, built when first needed.
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

/// Which conditions stand. All of them, but for tests that show what each is good for.
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

    /// Inserts `count` drafts. On MariaDB a row that is there already comes back instead, untouched,
    /// and a row that an open transaction holds is an error at once. On MySQL a row that is
    /// there is an error, and the fence of the last row comes back as the insert id.
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

    /// As `peek`, but an error at once if an open transaction holds one of the keys, seen or
    /// not. MySQL only; on a connection of ours, whose isolation leaves no gap lock behind.
    pub(crate) fn probe(&self, count: usize) -> Arc<str> {
        self.probe.get(count, || format!("{} FOR SHARE NOWAIT", select(count)))
    }

    /// Ends `count` claims, at least two; an error at once if a rival holds one of them. The clock
    /// that it wrote comes back as the insert id.
    pub(crate) fn settle(&self, count: usize) -> Arc<str> {
        self.settle.get(count, || {
            let number = format!("CAST({} AS SIGNED)", pick(count));
            let bytes = pick(count);
            // A claim that runs has no answer: what does not succeed keeps what is there, a retry payload.
            // By then `state` is the new one: a server evaluates SET from left to right.
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

    /// Extends `count` leases; an error at once if a rival holds one of them.
    pub(crate) fn renew(&self, count: usize) -> Arc<str> {
        self.renew.get(count, || {
            let until = after(&format!("CAST({} AS SIGNED)", pick(count)));
            self.many(count, &format!("lease_until = {until}, updated_at = {CLOCK}"))
        })
    }

    /// One UPDATE of many rows, each with values of its own, which [`pick`] finds by the digest.
    ///
    /// The rows are met in the order of the primary key, so that two such statements never wait for
    /// each other in a circle. The digests are sent once for each column: a user variable that holds
    /// the row's place would be shorter, but MySQL folds its assignment away, and a join with a
    /// derived table writes every batch to a temporary table on disk.
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

    /// Ends one claim; an error at once if a rival holds it.
    pub(crate) fn settle_one(&self, inside: Inside, answer: Answer) -> String {
        let set = ended(answer);
        let guard = self.lease_guard(inside);
        self.at_once(&format!(
            "UPDATE semel_record SET number = number + 1, {set} WHERE digest = ?{guard}"
        ))
    }

    /// Removes one claim; an error at once if a rival holds it.
    pub(crate) fn remove_one(&self, inside: Inside) -> String {
        let guard = self.lease_guard(inside);
        self.at_once(&format!("DELETE FROM semel_record WHERE digest = ?{guard}"))
    }

    fn lease_guard(&self, inside: Inside) -> String {
        // Sabotage keeps the parameters, so that binding stays the same.
        let guard = if self.guards.fence {
            " AND fence = ? AND attempt_id = ? AND state = 0"
        } else {
            " AND (? + LENGTH(?) IS NOT NULL)"
        };
        match (inside, self.flavour) {
            // After a COMMIT or a DDL statement in the work there is no transaction to complete.
            (Inside::Caller, Flavour::MariaDb) => format!("{guard} AND @@in_transaction = 1"),
            (Inside::Caller, Flavour::MySql) | (Inside::Own, _) => guard.to_owned(),
        }
    }

    /// Grants again over the judged version. The new fence comes back as the insert id.
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

    /// Ends the judged version without its holder.
    pub(crate) fn end(&self, answer: Answer) -> String {
        self.at_once(&format!(
            "UPDATE semel_record SET number = number + 1, fence = LAST_INSERT_ID(fence), {} \
             WHERE digest = ?{}",
            ended(answer),
            self.version_guard()
        ))
    }

    /// Sends the judged version round again.
    pub(crate) fn redrive(&self) -> String {
        self.at_once(&format!(
            "UPDATE semel_record SET number = number + 1, fence = LAST_INSERT_ID(fence), \
             {PARCEL_STAYS}, state = 2, attempt = 0, lease_until = NULL, retry_at = {CLOCK}, \
             updated_at = {CLOCK}, completed_at = {CLOCK}, expires_at = {} WHERE digest = ?{}",
            after("keep_us"),
            self.version_guard()
        ))
    }

    /// Counts the times of the judged version from now, where a clock wrote them that was ahead. From left
    /// to right: `updated_at` goes last.
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

    /// Removes the judged version. MariaDB gives its fence back; MySQL keeps it as the insert id.
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

    /// The statement, which does not wait for a row that an open transaction holds. MySQL
    /// has no such prefix: there it waits for the session's lock wait, one second on ours.
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

/// The transaction that a statement runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inside {
    /// Its own.
    Own,
    /// The caller's.
    Caller,
}

/// Whether a settlement brings an answer, which takes the place of a retry payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A success: body, content type, reference and the size of an omitted one are bound.
    Given,
    /// None of them is.
    None,
}

/// Drops an answer and leaves a retry payload: they lie in the same columns, and only a success (`state` 1)
/// has an answer there. Must come before `state` is set, which a server does from left to right.
const PARCEL_STAYS: &str = "body = IF(state = 1, NULL, body), \
     content_type = IF(state = 1, NULL, content_type), \
     reference = IF(state = 1, NULL, reference), omitted_bytes = NULL";

/// Where the values of a batch's settlements come from.
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

/// What `Record::ended` does to one record. `?` for the values, in the order of `bind_ending`.
fn ended(answer: Answer) -> String {
    let outcome = match answer {
        Answer::Given => "body = ?, content_type = ?, reference = ?, omitted_bytes = ?",
        Answer::None => PARCEL_STAYS,
    };
    format!(
        "{outcome}, state = ?, lease_until = NULL, retry_at = {}, error = ?, \
         updated_at = {CLOCK}, completed_at = {CLOCK}, expires_at = {}",
        after("?"),
        after("?")
    )
}

/// What `Record::ended` does to each of a batch. The order of the parameters is that of the fields.
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

/// The value at the row's place: first the digests are bound, then the values in the same order.
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
