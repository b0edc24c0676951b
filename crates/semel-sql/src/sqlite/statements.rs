//! The ledger's statements, their parameters, and how their rows are read.
//!
//! Every write after a grant has a condition on the fence and the attempt, every swap one on the
//! version that was judged; zero rows mean "lost" and are never an error. `writer` and
//! `transaction` run the statements.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use semel_core::claim::{Fence, Lease};
use semel_core::clock::Timestamp;
use semel_core::key::Key;
use semel_core::record::{Entry, Record, Version};
use semel_core::store::{Draft, Error, ErrorKind, Listed, Result, Settlement};
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Arguments, AssertSqlSafe, Encode, Row, SqlSafeStr, SqlStr, Sqlite, Type};

use crate::row::{
    DraftRow, KEY, RECORD, Raw, RawKey, SWEPT, SettlementRow, cells, outlined, span, undecodable,
    without_body,
};
use crate::template::sql;

/// Takes the write lock at once: a transaction that reads first and upgrades later fails with
/// `SQLITE_BUSY_SNAPSHOT`, which no busy timeout prevents.
pub(super) const BEGIN: &str = "BEGIN IMMEDIATE";

const INSERT: &str = sql!(
    "INSERT INTO semel_record ({key}, {record}, sweep_at) VALUES (?, ?, ?, ?, ?, ?, 1, ?, 0, ?, ?, ?, ?, ?, \
     ?, NULL, ?, ?, ?, ?, ?, NULL, NULL, ?, ?, NULL, NULL, ?) ON CONFLICT (digest) DO NOTHING"
);

/// Reads the record that existed before: a row that was just inserted has the new fence and is
/// excluded.
const FOUND: &str = sql!("SELECT {record} FROM semel_record WHERE digest = ? AND fence <> ?");

/// Reads one record.
pub(super) const PEEK: &str = sql!("SELECT {record} FROM semel_record WHERE digest = ?");

/// Lists records with their keys; conditions follow.
pub(super) const LIST: &str = sql!("SELECT {key}, {record} FROM semel_record WHERE digest > ");

/// Returns the text of [`LIST`] without the bytes of responses and retry payloads, but with their
/// number.
pub(super) fn survey() -> String {
    let empty = "CASE WHEN body IS NULL THEN NULL ELSE x'' END";
    let record = without_body(RECORD, "body", empty);
    format!("SELECT {KEY}, {record}, length(body) AS body_size FROM semel_record WHERE digest > ")
}

const SUCCEEDED: &str = "UPDATE semel_record SET number = number + 1, state = 1, \
    lease_until = NULL, retry_at = NULL, body = ?, content_type = ?, reference = ?, \
    omitted_bytes = ?, error = NULL, updated_at = ?, completed_at = ?, expires_at = ?, \
    sweep_at = ?";

/// Removes an outcome and keeps a retry payload: both are in the same columns, and only a success
/// (`state` 1) has an outcome there. SQLite computes all new values from the old row.
macro_rules! retry_payload_stays {
    () => {
        "body = CASE state WHEN 1 THEN NULL ELSE body END, \
         content_type = CASE state WHEN 1 THEN NULL ELSE content_type END, \
         reference = CASE state WHEN 1 THEN NULL ELSE reference END, omitted_bytes = NULL"
    };
}

const UNFINISHED: &str = concat!(
    "UPDATE semel_record SET number = number + 1, state = ?, lease_until = NULL, retry_at = ?, ",
    retry_payload_stays!(),
    ", error = ?, updated_at = ?, completed_at = ?, expires_at = ?, sweep_at = ?"
);

const GRANTED: &str = "UPDATE semel_record SET number = COALESCE(?, number + 1), fingerprint = ?, \
    state = 0, operation_id = ?, attempt_id = ?, attempt = ?, fence = MAX(fence + 1, ?), \
    owner = ?, lease_until = ?, retry_at = NULL, on_crash = ?, keep_us = ?, body = ?, \
    content_type = ?, reference = ?, omitted_bytes = NULL, error = NULL, \
    created_at = COALESCE(?, created_at), updated_at = ?, completed_at = NULL, \
    expires_at = NULL, sweep_at = ?";

/// A time, bound twice, plus the row's `keep`. An integer sum that overflows becomes a REAL in
/// SQLite, which a STRICT table refuses, so the sum saturates.
macro_rules! kept {
    () => {
        "? + MIN(keep_us, 9223372036854775807 - ?)"
    };
}

const REDRIVEN: &str = concat!(
    "UPDATE semel_record SET number = number + 1, state = 2, attempt = 0, lease_until = NULL, \
     retry_at = ?, ",
    retry_payload_stays!(),
    ", updated_at = ?, completed_at = ?, expires_at = ",
    kept!(),
    ", sweep_at = ",
    kept!()
);

/// Extends a lease. With `on_crash` 1 (Hold), the sweep is due when the lease lapses, otherwise a
/// `keep` later.
const RENEWED: &str = concat!(
    "UPDATE semel_record SET number = number + 1, lease_until = ?, updated_at = ?, \
     sweep_at = CASE on_crash WHEN 1 THEN ? ELSE ",
    kept!(),
    " END"
);

/// Moves the times that a clock wrote while it was ahead back to count from now (bound six times).
/// SQLite computes all new values from the old row.
const REDATED: &str = "UPDATE semel_record SET number = number + 1, \
    lease_until = lease_until - MAX(updated_at - ?, 0), retry_at = retry_at - MAX(updated_at - ?, 0), \
    expires_at = expires_at - MAX(updated_at - ?, 0), sweep_at = sweep_at - MAX(updated_at - ?, 0), \
    completed_at = MIN(completed_at, ?), updated_at = MIN(updated_at, ?)";

const REMOVED: &str = "DELETE FROM semel_record";

/// Suspends, among the `limit` rows whose sweep is due first, the lapsed claims that must not
/// simply be run again (all but Rerun, `on_crash` 0): they become Uncertain and are no longer
/// swept. [`PURGED`] removes the rest of the same rows. The scan of the index on `sweep_at` ends at
/// the limit; the kind of a row is checked after the scan, never during it.
const SUSPENDED: &str = "UPDATE semel_record SET number = number + 1, state = 4, \
    lease_until = NULL, error = ?, updated_at = ?, completed_at = ?, sweep_at = NULL \
    WHERE digest IN (SELECT digest FROM semel_record WHERE sweep_at <= ? ORDER BY sweep_at LIMIT ?) \
    AND state = 0 AND on_crash <> 0";
const PURGED: &str = "DELETE FROM semel_record WHERE digest IN (SELECT digest FROM semel_record \
    WHERE sweep_at <= ? ORDER BY sweep_at LIMIT MAX(0, ? - changes())) \
    AND NOT (state = 0 AND on_crash <> 0)";

/// The kind of a statement. Steps of one kind run as one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Verb {
    /// Extends a lease under its fence.
    Renew,
    /// Ends a claim with an outcome, under its lease.
    Succeed,
    /// Ends a claim without an outcome, under its lease.
    Settle,
    /// Ends a claim and removes its record, under its lease.
    Remove,
    /// Inserts a record, or reads the existing one.
    Open,
    /// Grants a new claim on the judged version.
    Grant,
    /// Ends the judged version with an outcome.
    Resolve,
    /// Ends the judged version without an outcome.
    End,
    /// Removes the judged version.
    Discard,
    /// Makes a record failed and due, with attempts from zero, if it still has the version that the
    /// caller read.
    Redrive,
    /// Moves the times of a record, written by a clock that was ahead, back to the current clock, if it
    /// still has the version that the caller read.
    Redate,
    /// Suspends and removes records whose sweep is due.
    Sweep,
}

impl Verb {
    /// Returns the number of results of one step of this kind: one per statement.
    pub(super) const fn statements(self) -> usize {
        match self {
            Verb::Open | Verb::Sweep => 2,
            Verb::Renew
            | Verb::Succeed
            | Verb::Resolve
            | Verb::Settle
            | Verb::Remove
            | Verb::Grant
            | Verb::End
            | Verb::Discard
            | Verb::Redrive
            | Verb::Redate => 1,
        }
    }

    fn text(self) -> String {
        let (leased, judged) = (leased(), judged());
        match self {
            Verb::Renew => format!("{RENEWED} WHERE {leased}"),
            Verb::Succeed => format!("{SUCCEEDED} WHERE {leased}"),
            Verb::Settle => format!("{UNFINISHED} WHERE {leased}"),
            Verb::Remove => format!("{REMOVED} WHERE {leased}"),
            Verb::Open => format!("{INSERT}; {FOUND}"),
            Verb::Grant => format!("{GRANTED} WHERE {judged} RETURNING fence"),
            Verb::Resolve => format!("{SUCCEEDED} WHERE {judged} RETURNING fence"),
            Verb::End => format!("{UNFINISHED} WHERE {judged} RETURNING fence"),
            Verb::Discard => format!("{REMOVED} WHERE {judged} RETURNING fence"),
            Verb::Redrive => format!("{REDRIVEN} WHERE {judged} RETURNING fence"),
            Verb::Redate => format!("{REDATED} WHERE {judged} RETURNING fence"),
            Verb::Sweep => format!("{SUSPENDED}; {PURGED}"),
        }
    }
}

/// Returns the condition of every write under a lease.
fn leased() -> &'static str {
    #[cfg(feature = "testing")]
    if semel_core::testing::sabotaged(semel_core::testing::Guard::Fence) {
        return "digest = ? AND (1 OR (fence = ? AND attempt_id = ? AND state = 0))";
    }
    "digest = ? AND fence = ? AND attempt_id = ? AND state = 0"
}

/// Returns the condition of every write on a judged version.
fn judged() -> &'static str {
    #[cfg(feature = "testing")]
    if semel_core::testing::sabotaged(semel_core::testing::Guard::Version) {
        return "digest = ? AND (1 OR (attempt_id = ? AND number = ?))";
    }
    "digest = ? AND attempt_id = ? AND number = ?"
}

/// The texts of blocks. A block repeats one step in a single command to SQLite's thread, so that a
/// group costs a handful of thread switches instead of one per statement. Sizes are powers of two,
/// so few texts exist and all of them stay prepared.
#[derive(Debug, Default)]
pub(super) struct Texts(Mutex<HashMap<(Verb, usize, bool), Arc<str>>>);

impl Texts {
    /// Returns the text of `size` steps of `verb`, followed by COMMIT if `commit`.
    pub(super) fn of(&self, verb: Verb, size: usize, commit: bool) -> SqlStr {
        let mut texts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = texts.entry((verb, size, commit)).or_insert_with(|| {
            let mut steps = vec![verb.text(); size];
            steps.extend(commit.then(|| "COMMIT".to_owned()));
            steps.join("; ").into()
        });
        // The text consists only of the constants above.
        AssertSqlSafe(Arc::clone(text)).into_sql_str()
    }
}

/// Collects the values that the steps of a block bind, in order.
#[derive(Default)]
pub(super) struct Bindings(SqliteArguments);

impl Bindings {
    fn add<'t, T: Encode<'t, Sqlite> + Type<Sqlite>>(&mut self, value: T) -> &mut Self {
        // Integers, text and bytes always encode: only types that check their values can refuse.
        self.0.add(value).expect("integers, text and bytes always encode");
        self
    }

    pub(super) fn finish(self) -> SqliteArguments {
        self.0
    }

    fn leased(&mut self, lease: &Lease) {
        self.add(&lease.digest.as_bytes()[..])
            .add(lease.fence.as_i64())
            .add(&lease.attempt_id.to_bytes()[..]);
    }

    fn judged(&mut self, key: &Key, judged: Version) {
        self.add(&identity(key)[..])
            .add(&judged.attempt_id.to_bytes()[..])
            .add(i64::try_from(judged.number).unwrap_or(i64::MAX));
    }

    pub(super) fn open(&mut self, draft: &Draft, fence: Fence, now: Timestamp) {
        let row = DraftRow::of(draft);
        let (digest, now) = (merged(&draft.key).unwrap_or(row.digest), now.as_micros());
        self.add(&digest[..]).add(row.kind).add(row.tenant).add(row.scope).add(row.principal);
        self.add(row.id).add(row.fingerprint);
        self.add(&row.operation_id[..]).add(&row.attempt_id[..]).add(row.attempt);
        self.add(fence.as_i64()).add(row.owner).add(now.saturating_add(row.lease_us));
        self.add(row.on_crash).add(row.keep_us);
        self.add(row.body).add(row.content_type).add(row.reference);
        self.add(now).add(now).add(now.saturating_add(row.sweep_us));
        self.add(&digest[..]).add(fence.as_i64());
    }

    pub(super) fn renew(&mut self, lease: &Lease, length: std::time::Duration, now: Timestamp) {
        let until = now.as_micros().saturating_add(span(length));
        self.add(until).add(now.as_micros());
        self.add(until).add(until).add(until).leased(lease);
    }

    fn ended(&mut self, settlement: &Settlement, now: Timestamp) {
        let row = SettlementRow::of(settlement);
        let now = now.as_micros();
        let expires_at = row.keep_us.map(|span| now.saturating_add(span));
        if succeeds(settlement) {
            self.add(row.body).add(row.content_type).add(row.reference).add(row.omitted_bytes);
        } else {
            self.add(row.state).add(row.retry_us.map(|span| now.saturating_add(span)));
            self.add(row.error);
        }
        self.add(now).add(now).add(expires_at).add(expires_at);
    }

    pub(super) fn settle(&mut self, lease: &Lease, settlement: &Settlement, now: Timestamp) {
        self.ended(settlement, now);
        self.leased(lease);
    }

    pub(super) fn remove(&mut self, lease: &Lease) {
        self.leased(lease);
    }

    pub(super) fn end(
        &mut self,
        key: &Key,
        version: Version,
        settlement: &Settlement,
        now: Timestamp,
    ) {
        self.ended(settlement, now);
        self.judged(key, version);
    }

    pub(super) fn discard(&mut self, key: &Key, version: Version) {
        self.judged(key, version);
    }

    pub(super) fn redrive(&mut self, key: &Key, version: Version, now: Timestamp) {
        for _ in 0..7 {
            self.add(now.as_micros());
        }
        self.judged(key, version);
    }

    pub(super) fn redate(&mut self, key: &Key, version: Version, now: Timestamp) {
        for _ in 0..6 {
            self.add(now.as_micros());
        }
        self.judged(key, version);
    }

    /// Binds a grant on a judged version. `fresh` means that the record has expired: nothing of it
    /// stays, except that the fence grows.
    pub(super) fn grant(
        &mut self,
        (key, version): (&Key, Version),
        draft: &Draft,
        fresh: bool,
        fence: Fence,
        now: Timestamp,
    ) {
        let row = DraftRow::of(draft);
        let now = now.as_micros();
        self.add(fresh.then_some(1_i64)).add(row.fingerprint).add(&row.operation_id[..]);
        self.add(&row.attempt_id[..]).add(row.attempt).add(fence.as_i64());
        self.add(row.owner).add(now.saturating_add(row.lease_us));
        self.add(row.on_crash).add(row.keep_us);
        self.add(row.body).add(row.content_type).add(row.reference);
        self.add(fresh.then_some(now)).add(now).add(now.saturating_add(row.sweep_us));
        self.judged(key, version);
    }

    pub(super) fn sweep(&mut self, limit: u32, now: Timestamp) {
        let now = now.as_micros();
        self.add(SWEPT).add(now).add(now).add(now).add(i64::from(limit));
        self.add(now).add(i64::from(limit));
    }
}

/// Returns whether a settlement is written with an outcome, in place of a retry payload.
pub(super) fn succeeds(settlement: &Settlement) -> bool {
    matches!(settlement, Settlement::Succeeded { .. })
}

/// Returns the bytes by which a key is found.
pub(super) fn identity(key: &Key) -> [u8; 32] {
    merged(key).unwrap_or(*key.digest().as_bytes())
}

/// Returns the digest by which a case-blind, space-trimming collation would find a key. Used only
/// when a test has disabled the guard of identity.
fn merged(key: &Key) -> Option<[u8; 32]> {
    #[cfg(feature = "testing")]
    if semel_core::testing::sabotaged(semel_core::testing::Guard::Identity) {
        let id = key.id().trim().to_lowercase();
        let merged = Key::new(key.kind(), key.tenant(), key.scope(), *key.principal(), &id);
        return merged.ok().map(|merged| *merged.digest().as_bytes());
    }
    let _ = key;
    None
}

/// Reads the record in a row.
pub(super) fn record(row: &SqliteRow, operation: &'static str) -> Result<Record> {
    Raw::read(row).map_err(|error| undecodable(operation, error))?.record(operation)
}

/// Reads the record and key in a row of [`LIST`].
pub(super) fn entry(row: &SqliteRow, operation: &'static str) -> Result<Entry> {
    let raw = Raw::read(row).map_err(|error| undecodable(operation, error))?;
    RawKey::read(row).map_err(|error| undecodable(operation, error))?.entry(raw, operation)
}

/// Reads the record and key in a row of [`survey`].
pub(super) fn listed(row: &SqliteRow, operation: &'static str) -> Result<Listed> {
    let size = row.try_get("body_size").map_err(|error| undecodable(operation, error))?;
    Ok(outlined(entry(row, operation)?, size))
}

/// Returns the digest in a row of [`LIST`] or [`survey`]; empty if it has another type, which no
/// listing finds.
pub(super) fn digest(row: &SqliteRow) -> Vec<u8> {
    row.try_get("digest").unwrap_or_default()
}

/// Reads the fence that a swap returned.
pub(super) fn fence(row: &SqliteRow) -> Result<Fence> {
    let stored: i64 = row.try_get(0).map_err(|error| undecodable("swap", error))?;
    u64::try_from(stored).map(Fence).map_err(|_| {
        Error::new(ErrorKind::Corrupt, "swap", "column fence of semel_record is negative")
    })
}

cells!(SqliteRow: i16, i32, i64, String, Vec<u8>, Option<i64>, Option<String>, Option<Vec<u8>>);
