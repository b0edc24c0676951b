//! The texts of the statements, and the meaning of the server's error codes.
//!
//! Each text is a file under `queries/`, which begins with the invariant that it keeps. `{record}`
//! and the like are column lists (`template`). `ledger`, `outbox` and `idmap` bind the values and
//! read the rows.

use std::borrow::Cow;

use semel_core::store::{Error, ErrorKind};
use sqlx::error::DatabaseError;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

use crate::error::{Stage, classify};
use crate::template::sql;

pub(super) const OPEN: &str = sql!(include_str!("queries/open.sql"));
pub(super) const OPEN_MANY: &str = sql!(include_str!("queries/open_many.sql"));
pub(super) const PEEK: &str = sql!(include_str!("queries/peek.sql"));
pub(super) const PEEK_MANY: &str = sql!(include_str!("queries/peek_many.sql"));
pub(super) const SETTLE: &str = include_str!("queries/settle.sql");
pub(super) const RELEASE: &str = include_str!("queries/release.sql");
pub(super) const SETTLE_MANY: &str = include_str!("queries/settle_many.sql");
pub(super) const HOLD_KEY: &str = include_str!("queries/hold_key.sql");
pub(super) const FIND_KEY: &str = include_str!("queries/find_key.sql");
pub(super) const FINISH: &str = sql!(include_str!("queries/finish.sql"));
pub(super) const SETTLE_IN: &str = include_str!("queries/settle_in.sql");
pub(super) const RELEASE_IN: &str = include_str!("queries/release_in.sql");
pub(super) const HOLD: &str = include_str!("queries/hold.sql");
pub(super) const REGRANT: &str = include_str!("queries/regrant.sql");
pub(super) const END: &str = include_str!("queries/end.sql");
pub(super) const REMOVE: &str = include_str!("queries/remove.sql");
pub(super) const REDRIVE: &str = include_str!("queries/redrive.sql");
pub(super) const REDATE: &str = include_str!("queries/redate.sql");
pub(super) const RENEW: &str = include_str!("queries/renew.sql");
pub(super) const SWEEP: &str = include_str!("queries/sweep.sql");

/// Begins a transaction and marks it, in one trip. The mark ends with the transaction, however that
/// ends, so that `settle_in` recognises work that committed the transaction by itself.
pub(super) const BEGIN: &str = "begin; set local semel.unit = 'open'";

/// Marks a transaction that the application began. Fails outside a transaction block, where a
/// savepoint cannot be set.
pub(super) const ADOPT: &str = "savepoint semel_adopted; release savepoint semel_adopted; \
                                set local semel.unit = 'open'";

/// Builds a statement that ends the transaction and removes all session state that the work can
/// leave: what `discard all` does, except for the prepared statements, which `sqlx` relies on and
/// which hold no data.
macro_rules! reset {
    ($end:literal) => {
        concat!(
            $end,
            "; close all; reset session authorization; reset all; unlisten *; \
             select pg_advisory_unlock_all(); discard temp; discard sequences"
        )
    };
}

/// Commits, then resets the session, in one trip. The reset takes the server 0.03 ms; sent
/// separately it would cost the caller a trip. The first answer is the commit's.
pub(super) const COMMIT: &str = reset!("commit");
/// Rolls back, then resets the session as [`COMMIT`] does. That also removes what a rollback does
/// not undo: session locks and cursors.
pub(super) const ROLLBACK: &str = reset!("rollback");

/// The store's clock, for statements that are composed at run time.
pub(super) const CLOCK: &str = "(extract(epoch from clock_timestamp()) * 1000000)::bigint";

/// Returns the text to send: that of the file, unless a test has disabled one of its guards.
pub(super) fn text(sql: &'static str) -> SqlStr {
    match plain(sql) {
        Cow::Borrowed(sql) => sql.into_sql_str(),
        Cow::Owned(sql) => AssertSqlSafe(sql).into_sql_str(),
    }
}

/// As [`text`], for use inside a longer text.
pub(super) fn plain(sql: &'static str) -> Cow<'static, str> {
    #[cfg(feature = "testing")]
    return sabotage(sql, semel_core::testing::sabotaged);
    #[cfg(not(feature = "testing"))]
    return Cow::Borrowed(sql);
}

/// Drops the lines that end in `-- guard: <name>` of a disabled guard, and replaces the clock by
/// the time at which the transaction began if its guard is disabled.
#[cfg(feature = "testing")]
fn sabotage(
    sql: &'static str,
    removed: fn(semel_core::testing::Guard) -> bool,
) -> Cow<'static, str> {
    use semel_core::testing::Guard;
    let mut sql = Cow::Borrowed(sql);
    for guard in [Guard::Fence, Guard::Version] {
        if removed(guard) {
            let mark = format!("-- guard: {}", guard.name());
            let kept: Vec<&str> = sql.lines().filter(|line| !line.ends_with(&mark)).collect();
            sql = Cow::Owned(kept.join("\n"));
        }
    }
    if removed(Guard::StoreClock) {
        sql = Cow::Owned(sql.replace("clock_timestamp()", "now()"));
    }
    sql
}

/// Returns the options for sessions of callers' transactions. They are start-up parameters, so that
/// resetting a session restores them. A transaction that is dropped in the middle of a long
/// statement keeps its locks until the server checks whether the client is still connected, which
/// it can do from PostgreSQL 14 on.
pub(super) fn transaction_session(
    options: PgConnectOptions,
    version: Option<u32>,
) -> PgConnectOptions {
    match version {
        Some(140_000..) => options.options([("client_connection_check_interval", "1000")]),
        Some(_) | None => options,
    }
}

/// Converts the error of a statement that the store sent outside a caller's transaction.
pub(super) fn failed(operation: &'static str) -> impl Fn(sqlx::Error) -> Error {
    move |error| {
        let error = classify(codes, Stage::Running, operation, error);
        if error.kind() == ErrorKind::RetryTransaction {
            // No transaction of the caller is to be run again: only the statement failed.
            return error.with_kind(ErrorKind::Unavailable);
        }
        error
    }
}

/// Converts the error of a statement inside a transaction, which cannot have committed anything.
pub(super) fn failed_in(operation: &'static str) -> impl Fn(sqlx::Error) -> Error {
    move |error| certain(classify(codes, Stage::Running, operation, error))
}

/// As [`failed_in`], for a statement that writes what the work gave, such as an event or an id.
pub(super) fn refused_in(operation: &'static str) -> impl Fn(sqlx::Error) -> Error {
    move |error| certain(classify(codes_of_contents, Stage::Running, operation, error))
}

fn certain(error: Error) -> Error {
    match error.kind() == ErrorKind::Ambiguous {
        true => error.with_kind(ErrorKind::Unavailable),
        false => error,
    }
}

/// As [`codes`]; a refusal that is not about the server's condition is about what is written.
pub(super) fn codes_of_contents(error: &dyn DatabaseError) -> Option<ErrorKind> {
    const CONDITIONS: [&str; 9] = ["08", "25", "40", "53", "55", "57", "58", "F0", "XX"];
    let code = error.code()?;
    let of_contents = || (!CONDITIONS.contains(&code.get(..2)?)).then_some(ErrorKind::Refused);
    codes(error).or_else(of_contents)
}

/// Converts the error of a connect.
pub(super) fn unconnected(operation: &'static str) -> impl Fn(sqlx::Error) -> Error {
    move |error| classify(codes, Stage::Connecting, operation, error)
}

/// Returns whether the statement conflicted with a concurrent transaction: a lock timeout, a
/// deadlock or a serialisation failure. Nothing was done.
pub(super) fn conflicted(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(DatabaseError::code);
    code.is_some_and(|code| matches!(&*code, "55P03" | "40P01" | "40001"))
}

/// Returns whether an error means that this session, or its server, can no longer be used: it is
/// shutting down, became read-only, lost its prepared statements, or has a plan that no longer
/// fits.
pub(super) fn ends_session(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(DatabaseError::code);
    code.is_some_and(|code| {
        matches!(&*code, "25006" | "0A000" | "26000" | "42P05" | "25P03" | "53300")
            || ["08", "28", "57P", "58", "XX"].iter().any(|class| code.starts_with(class))
    })
}

/// Returns what the server's code means for a caller; see `Codes`.
pub(super) fn codes(error: &dyn DatabaseError) -> Option<ErrorKind> {
    let code = error.code()?;
    Some(match &*code {
        "40001" | "40P01" => ErrorKind::RetryTransaction,
        // The backend was terminated when the statement may already have committed.
        "57P01" | "57P02" => ErrorKind::Ambiguous,
        "53100" => ErrorKind::Capacity,
        "XX001" | "XX002" => ErrorKind::Corrupt,
        // No table, no column, no schema, no function, no database, no right, read-only, or a
        // prepared statement that a pooler in front of the server does not know.
        "42P01" | "42703" | "3F000" | "42883" | "3D000" | "42501" | "25006" | "26000" | "42P05" => {
            ErrorKind::Misconfigured
        }
        code if code.starts_with("28") => ErrorKind::Misconfigured,
        code if code.starts_with("08") => ErrorKind::Ambiguous,
        _ => return None,
    })
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use semel_core::testing::Guard;

    use super::*;

    #[test]
    fn sabotage_removes_exactly_the_disabled_guard() {
        let fence = sabotage(SETTLE, |guard| guard == Guard::Fence);
        assert!(SETTLE.contains("r.attempt_id = $3"));
        assert!(!fence.contains("r.attempt_id = $3") && fence.contains("clock_timestamp()"));
        let version = sabotage(REGRANT, |guard| guard == Guard::Version);
        assert!(!version.contains("r.number = $3") && version.contains("for update skip locked"));
        let clock = sabotage(OPEN, |guard| guard == Guard::StoreClock);
        assert!(!clock.contains("clock_timestamp()"));
        assert_eq!(sabotage(OPEN, |_| false), OPEN);
    }

    #[test]
    fn a_grants_clock_is_read_under_its_lock() {
        for sql in [OPEN, OPEN_MANY] {
            let (_, insert) = sql.split_once("insert into").expect("inserts");
            let (insert, _) = insert.split_once("returning").expect("gives its fence");
            let (_, locked) = insert.split_once("pg_try_advisory_xact_lock(").expect("locks");
            assert!(locked.lines().next().is_some_and(|l| l.ends_with(") then clock_timestamp()")));
            assert_eq!(insert.matches("clock_timestamp()").count(), 1, "{insert}");
            assert!(!insert.contains("clock c"), "{insert}");
        }
    }

    #[test]
    fn a_late_records_fence_is_read_after_its_lock_was_taken() {
        // Two statements: the second takes its snapshot, and reads the clock, after the first has
        // ended.
        assert!(HOLD_KEY.contains("pg_try_advisory_xact_lock(") && !HOLD_KEY.contains("clock"));
        assert!(FIND_KEY.contains("clock_timestamp()") && !FIND_KEY.contains("lock("));
    }

    #[test]
    fn every_write_after_a_grant_has_a_guard() {
        for sql in [SETTLE, RELEASE, SETTLE_MANY, SETTLE_IN, RELEASE_IN, HOLD, RENEW] {
            assert!(sql.contains("-- guard: fence"), "{sql}");
        }
        for sql in [REGRANT, END, REMOVE, REDRIVE, REDATE] {
            assert!(sql.contains("-- guard: version"), "{sql}");
        }
    }
}
