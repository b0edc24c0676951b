//! Opens the store's connections, sets their sessions, and reads what the server is.
//!
//! Nothing of the ledger is here. Connections that a caller brings never get these settings; what
//! the ledger needs on them is part of each statement.

use std::time::Duration;

use semel_core::store::{Error, ErrorKind, Result};
use sqlx::error::DatabaseError;
use sqlx::mysql::{MySqlConnectOptions, MySqlDatabaseError};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection as _, MySqlConnection, Row};
use tokio::time::{Instant, timeout};

use crate::error::{Codes, Stage, classify};

/// The number of prepared statements kept per connection: one per verb and batch size, and space
/// for those of the work.
const STATEMENTS: usize = 512;

/// The bytes that a statement has beside its bodies, estimated generously.
pub(crate) const OVERHEAD: usize = 16 << 10;

/// The two servers with this protocol, and how their SQL differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    /// Has `INSERT … RETURNING`, `SET STATEMENT … FOR` and a lock wait of zero.
    MariaDb,
    /// Has none of the three; reads with `NOWAIT` keep it from waiting.
    MySql,
}

/// What the server reported about itself when the store connected.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) flavour: Flavour,
    pub(crate) version: String,
    /// The largest statement that the server accepts, in bytes.
    pub(crate) packet: usize,
    /// Whether a lock wait that times out rolls back the whole transaction.
    pub(crate) timeout_rolls_back: bool,
}

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Only the store's own statements: the batcher, a renewer, the sweeper.
    Ledger,
    /// A transaction that also runs the caller's statements.
    Transaction,
    /// Migrations: their statements have no time limit.
    Migration,
}

/// Half the shortest time after which a server can be set to close an idle connection.
pub(crate) const SHORTEST_WAIT: Duration = Duration::from_millis(500);

/// An idle connection, and since when it is idle.
pub(crate) struct Idle {
    connection: MySqlConnection,
    since: Instant,
}

impl Idle {
    pub(crate) fn new(connection: MySqlConnection) -> Self {
        Self { connection, since: Instant::now() }
    }

    /// Returns the connection, or `None` if the server has closed it (`wait_timeout`): a write that
    /// is sent on a closed connection would have to be reported as ambiguous. Costs a trip if the
    /// connection was idle for [`SHORTEST_WAIT`] or longer.
    pub(crate) async fn wake(mut self, limit: Duration) -> Option<MySqlConnection> {
        if self.since.elapsed() < SHORTEST_WAIT {
            return Some(self.connection);
        }
        let answered = timeout(limit, self.connection.ping()).await;
        matches!(answered, Ok(Ok(()))).then_some(self.connection)
    }
}

/// Opens a connection and sets its session.
pub(crate) async fn connect(
    options: &MySqlConnectOptions,
    role: Role,
    limit: Duration,
) -> Result<(MySqlConnection, Server)> {
    let failed = |error| classify(codes, Stage::Connecting, "connect", error);
    let options = options.clone().statement_cache_capacity(STATEMENTS);
    let mut connection = options.connect().await.map_err(failed)?;
    let server = describe(&mut connection).await?;
    let settings = settings(server.flavour, role, limit);
    sqlx::raw_sql(AssertSqlSafe(settings)).execute(&mut connection).await.map_err(failed)?;
    Ok((connection, server))
}

/// Returns the statements that set up a session. READ COMMITTED takes no gap locks, so different
/// keys never wait for each other. Strict mode makes the server refuse values that it would
/// otherwise truncate, and without simultaneous assignment SET works from left to right, as the
/// statements expect. Lock waits are short on connections that run only the store's statements; in
/// a caller's transaction the session's own setting applies.
///
/// Connections on which work runs have no autocommit. A deadlock, and with
/// `innodb_rollback_on_timeout` a lock wait, rolls the whole transaction back; with autocommit,
/// work that continues after such an error would commit every later statement by itself. Without
/// it, later statements are in a new transaction, which lacks the store's savepoint and is
/// therefore never committed.
fn settings(flavour: Flavour, role: Role, limit: Duration) -> String {
    let autocommit = u8::from(role != Role::Transaction);
    let mut text = format!(
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
         SET SESSION autocommit = {autocommit}, sql_mode = CONCAT(REPLACE(@@sql_mode, \
         'SIMULTANEOUS_ASSIGNMENT', ''), ',STRICT_TRANS_TABLES')",
    );
    if role == Role::Transaction {
        // Statements recognise a transaction of the store by this variable.
        text.push_str(", @semel_work = 1");
    }
    if role == Role::Ledger {
        text.push_str(", innodb_lock_wait_timeout = 1");
        if flavour == Flavour::MariaDb {
            // When the store has stopped waiting for a statement, the server should stop running it
            // too.
            text.push_str(&format!(", max_statement_time = {}", limit.as_secs().max(1)));
        }
    }
    text
}

async fn describe(connection: &mut MySqlConnection) -> Result<Server> {
    let failed = |error| classify(codes, Stage::Connecting, "connect", error);
    let text = "SELECT VERSION(), CAST(@@max_allowed_packet AS SIGNED), \
                CAST(@@innodb_rollback_on_timeout AS SIGNED)";
    let row = sqlx::query(text).persistent(false).fetch_one(connection).await.map_err(failed)?;
    let version: String = row.try_get(0).map_err(failed)?;
    let packet: i64 = row.try_get(1).map_err(failed)?;
    let timeout_rolls_back: i64 = row.try_get(2).map_err(failed)?;
    Ok(Server {
        flavour: flavour_of(&version)?,
        version,
        packet: usize::try_from(packet).unwrap_or(usize::MAX),
        timeout_rolls_back: timeout_rolls_back != 0,
    })
}

/// Returns which server it is by its version, and refuses versions that lack what the statements
/// need.
fn flavour_of(version: &str) -> Result<Flavour> {
    // Replication once made MariaDB put "5.5.5-" in front of its real version.
    let plain = version.strip_prefix("5.5.5-").unwrap_or(version);
    let mut numbers = plain.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse::<u32>());
    let mut next = || numbers.next().and_then(std::result::Result::ok).unwrap_or(0);
    let found = (next(), next());
    let (flavour, name, least) = if version.to_ascii_lowercase().contains("mariadb") {
        (Flavour::MariaDb, "MariaDB", (10, 6))
    } else {
        (Flavour::MySql, "MySQL", (8, 0))
    };
    if found < least {
        let (major, minor) = least;
        let text = format!(
            "the server is {name} {plain}, at least {name} {major}.{minor} is needed; upgrade it"
        );
        return Err(Error::new(ErrorKind::Misconfigured, "connect", text));
    }
    Ok(flavour)
}

/// Returns the server's error number.
pub(crate) fn number(error: &sqlx::Error) -> Option<u16> {
    error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>().map(|e| e.number())
}

/// Returns whether another transaction holds a lock that was not waited for: 1205, and 3572 for
/// MySQL's NOWAIT.
pub(crate) fn held(error: &sqlx::Error) -> bool {
    matches!(number(error), Some(1205 | 3572))
}

/// Returns whether the statement was chosen to break a deadlock, and was rolled back with its transaction.
pub(crate) fn deadlock(error: &sqlx::Error) -> bool {
    number(error) == Some(1213)
}

/// Returns whether the connection is not to be used again: it is lost, its statement was killed or
/// ran out of time, or the server refuses because of its present state (read-only after a
/// switchover, shutting down, cut off from its cluster) and another connection may lead to another
/// server.
pub(crate) fn is_lost(error: &sqlx::Error) -> bool {
    if error.as_database_error().is_none() {
        return !matches!(
            error,
            sqlx::Error::RowNotFound
                | sqlx::Error::ColumnDecode { .. }
                | sqlx::Error::Decode(_)
                | sqlx::Error::Encode(_)
        );
    }
    matches!(
        number(error),
        // A node outside its cluster, shutting down, killed, packets out of order or too large (the
        // server closes the connection), read-only in three ways, closed after being idle.
        Some(
            1047 | 1053 | 1152
                ..=1161
                    | 1184
                    | 1290
                    | 1317
                    | 1792
                    | 1836
                    | 1927
                    | 1969
                    | 3024
                    | 3100
                    | 3168
                    | 3169
                    | 4031
        )
    )
}

/// Converts the error of a statement.
pub(crate) fn failed(operation: &'static str, error: sqlx::Error) -> Error {
    classify(codes, Stage::Running, operation, error)
}

/// Converts the error of a statement that writes what the work gave, an event or an id: a refusal
/// because of a value or a constraint is about what is written.
pub(crate) fn refused_contents(operation: &'static str, error: sqlx::Error) -> Error {
    // Values, constraints, and what a trigger signals.
    const CONTENTS: [&str; 3] = ["22", "23", "45"];
    let codes: Codes = |error| {
        let of_contents = || {
            let code = error.code()?;
            CONTENTS.contains(&code.get(..2)?).then_some(ErrorKind::Refused)
        };
        codes(error).or_else(of_contents)
    };
    classify(codes, Stage::Running, operation, error)
}

/// Returns the error kind for an error number of the server; see `Codes`.
pub(crate) fn codes(refusal: &dyn DatabaseError) -> Option<ErrorKind> {
    let refusal = refusal.try_downcast_ref::<MySqlDatabaseError>()?;
    Some(match refusal.number() {
        // Lock wait, deadlock, and "record has changed since last read" of snapshot isolation.
        // The last is a group that rolled the transaction back because of a conflict.
        1205 | 1213 | 1020 | 3572 | 3101 => ErrorKind::RetryTransaction,
        // Killed, interrupted, out of time, shutting down: how far the statement came is unknown.
        1053 | 1317 | 1927 | 1969 | 3024 => ErrorKind::Ambiguous,
        // Not in its cluster's majority, or the group rolled the transaction back before it ended.
        1047 | 3100 => ErrorKind::Unavailable,
        // Disk full, table full.
        1021 | 1114 => ErrorKind::Capacity,
        // No such database, table or column; no rights; read-only; too large; too long.
        1044 | 1045 | 1049 | 1054 | 1142 | 1143 | 1146 | 1153 | 1290 | 1305 | 1406 | 1698
        | 1792 | 1836 => ErrorKind::Misconfigured,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_too_old_is_refused() {
        assert_eq!(flavour_of("10.11.6-MariaDB-log").expect("known"), Flavour::MariaDb);
        assert_eq!(flavour_of("5.5.5-10.6.12-MariaDB").expect("known"), Flavour::MariaDb);
        assert_eq!(flavour_of("8.0.36").expect("known"), Flavour::MySql);
        assert_eq!(flavour_of("8.4.0-commercial").expect("known"), Flavour::MySql);
        for old in ["10.5.27-MariaDB", "5.7.44-log", "nonsense"] {
            let error = flavour_of(old).expect_err("too old");
            assert_eq!(error.kind(), ErrorKind::Misconfigured);
            assert!(error.to_string().contains("is needed"), "{error}");
        }
    }
}
